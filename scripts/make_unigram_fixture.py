#!/usr/bin/env python3
"""Makes test/data/tokenizer-unigram: a small unigram model like T5's and what SentencePiece's programs say to texts.

Usage: make_unigram_fixture.py FOLDER

Needs spm_train, spm_encode and spm_decode (Debian: sentencepiece). As in T5 nothing begins a text, </s> ends it, and
padding has id 0; two user-defined pieces are added, and no normalisation, whose tables would be most of the file.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "",
    "   spaces   in   between   ",
    "na\u00efve \u6f22\u5b57 \U0001f642 end",
    "a<extra>b ==> c<extra>",
    "12345 + 67890 = 80235",
    "expert expert experts experimental",
    "tokens/s, [n, hidden_size]; (x)",
    "aaaaaaaaaaaaaaaaaaaaaaa",
    "\u00c4\u00d6\u00dc \u00e4\u00f6\u00fc \u00df",
    "the server of the layer moves the state to the server of the expert",
    "\u2603\u2603\u2603 unknown \u2603",
    "x",
    "\t tab",
    "mixture-of-experts: 8 x 7B",
    "<extra><extra>==>==>",
]


def run(program, model, form, text):
    command = [program, f"--model={model}", f"--{form}_format=id"]
    return subprocess.run(command, input=text + "\n", capture_output=True, text=True, check=True).stdout


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        text = "".join((ROOT / "data/eval" / name).read_text() for name in ("calibration.txt", "held-out.txt"))
        pathlib.Path(scratch, "text.txt").write_text(text)
        subprocess.run(["spm_train", "--input=text.txt", "--model_prefix=made", "--vocab_size=300",
                        "--model_type=unigram", "--character_coverage=0.995", "--pad_id=0", "--eos_id=1", "--unk_id=2",
                        "--bos_id=-1", "--normalization_rule_name=identity", "--num_threads=1",
                        "--user_defined_symbols=<extra>,==>"], cwd=scratch, check=True, capture_output=True)
        (folder / "spiece.model").write_bytes(pathlib.Path(scratch, "made.model").read_bytes())
    model = folder / "spiece.model"
    pieces = []
    for text in TEXTS:
        ids = [int(word) for word in run("spm_encode", model, "output", text).split()]
        decoded = run("spm_decode", model, "input", " ".join(map(str, ids))).removesuffix("\n")
        pieces.append({"text": text, "ids": ids, "decoded": decoded})
    (folder / "pieces.json").write_text(json.dumps(pieces, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(pathlib.Path(sys.argv[1]))
