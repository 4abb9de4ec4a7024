#!/usr/bin/env python3
"""Writes the damaged files of test/data/regressions, one for each way in which a file was or may be wrong, and the
sound seeds of fuzz/seeds. test/model/regressions.test.cpp says what each is refused with. Needs Python 3 alone.

    scripts/make_regressions.py        writes them all again; the result is the same bytes
"""
import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "test" / "data"
OUT = DATA / "regressions"
SEEDS = ROOT / "fuzz" / "seeds"


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


# safetensors


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def write_safetensors():
    sixteen = bytes(range(16))
    good = {"a": tensor([2], 0, 8), "b": tensor([1, 2], 8, 16)}
    whole = safetensors(good, sixteen)
    header_end = len(whole) - 16
    files = {
        "empty-file": b"",
        "length-cut-short": whole[:5],
        "header-longer-than-the-file": safetensors(good, sixteen, length=len(whole)),
        "header-of-2-to-the-63": safetensors(good, sixteen, length=1 << 63),
        "header-cut-short": whole[:40],
        "header-no-json": safetensors("nonsense, no object", sixteen),
        "header-no-utf8": safetensors(b'{"\xff":' + json.dumps(tensor([4], 0, 16)).encode() + b"}", sixteen),
        "header-nested-too-deep": safetensors('{"a":' + "[" * 50000 + "]" * 50000 + "}"),
        "data-cut-short": whole[:-1],
        "data-after-the-last-tensor": whole + b"x",
        "shape-product-overflows": safetensors({"a": tensor([1 << 32, 1 << 32], 0, 16)}, sixteen),
        "shape-product-overflows-to-zero": safetensors({"a": tensor([1 << 62, 4], 0, 0)}),
        "shape-negative": safetensors({"a": tensor([-4], 0, 16)}, sixteen),
        "shape-of-text": safetensors({"a": tensor(["4"], 0, 16)}, sixteen),
        "shape-of-another-size": safetensors({"a": tensor([3], 0, 16)}, sixteen),
        "end-before-begin": safetensors({"a": tensor([4], 16, 0)}, sixteen),
        "end-beyond-the-data": safetensors({"a": tensor([8], 0, 32)}, sixteen),
        "offset-negative": safetensors({"a": tensor([4], -4, 12)}, sixteen),
        "offset-fractional": safetensors({"a": tensor([4], 0.5, 16.5)}, sixteen),
        "offsets-overlap": safetensors({"a": tensor([3], 0, 12), "b": tensor([2], 8, 16)}, sixteen),
        "offsets-leave-a-gap": safetensors({"a": tensor([1], 0, 4), "b": tensor([2], 8, 16)}, sixteen),
        "tensor-twice": safetensors('{"a":%s,"a":%s}' % ((json.dumps(tensor([4], 0, 16)),) * 2), sixteen),
        "type-unknown": safetensors({"a": tensor([4], 0, 16, "I32")}, sixteen),
        "type-missing": safetensors({"a": {"shape": [4], "data_offsets": [0, 16]}}, sixteen),
        "field-unknown": safetensors({"a": {**tensor([4], 0, 16), "stride": 1}}, sixteen),
        "metadata-no-strings": safetensors({"__metadata__": {"format": 1}, "a": tensor([4], 0, 16)}, sixteen),
    }
    assert whole[:40] != whole and header_end > 40
    for name, content in files.items():
        write(OUT / "safetensors" / f"{name}.safetensors", content)
    mixed = {"__metadata__": {"format": "pt"}, "a": tensor([1, 2], 0, 8), "b": tensor([2], 8, 12, "BF16"),
             "c": tensor([], 12, 14, "F16"), "d": tensor([0, 3], 14, 14, "F16"), "e": tensor([1], 14, 16, "BF16")}
    write(SEEDS / "safetensors" / "two-tensors", whole)
    write(SEEDS / "safetensors" / "every-type", safetensors(mixed, sixteen))
    write(SEEDS / "safetensors" / "no-tensors", safetensors("{}"))


# The index of a sharded folder; beside it stand one.safetensors (a, b) and two.safetensors (c).


def write_shard_index():
    one, two = "one.safetensors", "two.safetensors"
    good = {"a": one, "b": one, "c": two}
    whole = json.dumps({"metadata": {"total_size": 12}, "weight_map": good}, indent=2)

    def mapped(**changes):
        return json.dumps({"weight_map": {**good, **changes}})

    files = {
        "cut-short": whole[:-20],
        "no-weight-map": json.dumps({"metadata": {}}),
        "weight-map-no-object": json.dumps({"weight_map": [one, two]}),
        "not-an-object": "[]",
        "nested-too-deep": '{"weight_map":' + "[" * 50000 + "]" * 50000 + "}",
        "file-no-text": mapped(a=1),
        "file-outside-the-folder": mapped(a="../one.safetensors"),
        "file-absolute": mapped(a="/etc/passwd"),
        "file-with-a-nul": mapped(a="one.safetensors\0.txt"),
        "file-without-a-name": mapped(a=""),
        "shard-missing": mapped(a="three.safetensors"),
        "shards-swapped": mapped(a=two, b=two, c=one),
        "tensor-in-no-shard": mapped(d=two),
        "tensor-missing": json.dumps({"weight_map": {"a": one, "c": two}}),
        "tensor-twice": '{"weight_map":{"a":"one.safetensors","b":"one.safetensors","c":"one.safetensors",'
                        '"c":"two.safetensors"}}',
    }
    for name, content in files.items():
        write(OUT / "shard_index" / f"{name}.json", content)
    write(SEEDS / "shard_index" / "sound", whole)


# config.json


def write_config_json():
    good = json.loads((DATA / "mixtral-tiny" / "config.json").read_text())
    qwen = json.loads((DATA / "golden" / "qwen2-moe" / "config.json").read_text())
    switch = json.loads((DATA / "golden" / "switch" / "config.json").read_text())

    def changed(base=good, **changes):
        return json.dumps({**base, **changes}, indent=2)

    def without(name):
        return json.dumps({key: value for key, value in good.items() if key != name}, indent=2)

    deep = "[" * 100000 + "]" * 100000  # Printing it took more stack than there is.
    text = json.dumps(good, indent=2)
    files = {
        "cut-short": text[:-30],
        "not-an-object": "[]",
        "nested-too-deep": text.replace('"hidden_size": 40', '"hidden_size": ' + deep),
        "nested-too-deep-in-rope-parameters": text[:-2] + ', "rope_parameters": ' + deep + "}",
        "field-twice": text.replace('"hidden_size": 40', '"hidden_size": 40, "hidden_size": 80'),
        "number-beyond-a-double": text.replace('"hidden_size": 40', '"hidden_size": 1e400'),
        "hidden-size-negative": changed(hidden_size=-40),
        "hidden-size-zero": changed(hidden_size=0),
        "hidden-size-huge": changed(hidden_size=1 << 40),
        "hidden-size-fractional": changed(hidden_size=40.5),
        "hidden-size-of-text": changed(hidden_size="40"),
        "hidden-size-missing": without("hidden_size"),
        "layers-zero": changed(num_hidden_layers=0),
        "layers-huge": changed(num_hidden_layers=1 << 31),
        "heads-zero": changed(num_attention_heads=0),
        "heads-no-multiple-of-kv-heads": changed(num_key_value_heads=3),
        "hidden-size-no-multiple-of-heads": json.dumps(
            {key: value for key, value in {**good, "hidden_size": 42}.items() if key != "head_dim"}, indent=2),
        "head-size-odd": changed(head_dim=9),
        "experts-zero": changed(num_local_experts=0),
        "experts-negative": changed(num_local_experts=-8),
        "more-experts-chosen-than-there-are": changed(num_experts_per_tok=7),
        "experts-chosen-zero": changed(num_experts_per_tok=0),
        "vocabulary-huge": changed(vocab_size=1 << 63),
        "context-zero": changed(max_position_embeddings=0),
        "end-of-text-beyond-the-vocabulary": changed(eos_token_id=320),
        "end-of-text-negative": changed(eos_token_id=-1),
        "norm-epsilon-negative": changed(rms_norm_eps=-1e-5),
        "rope-base-zero": changed(rope_theta=0),
        "rope-scaled": changed(rope_scaling={"type": "yarn", "factor": 4.0}),
        "architecture-unknown": changed(architectures=["LlamaForCausalLM"]),
        "architecture-of-another-model-type": changed(model_type="olmoe"),
        "quantised": changed(quantization_config={"bits": 4}),
        "activation-unknown": changed(hidden_act="gelu"),
        "shared-expert-negative": changed(qwen, shared_expert_intermediate_size=-1),
        "dense-layer-beyond-the-model": changed(qwen, mlp_only_layers=[99]),
        "capacity-zero": changed(switch, expert_capacity=0),
        "distance-buckets-odd": changed(switch, relative_attention_num_buckets=31),
        "end-of-text-list-empty": changed(eos_token_id=[]),
        "end-of-text-list-beyond-the-vocabulary": changed(eos_token_id=[2, 320]),
    }
    assert len(set(files.values())) == len(files) and text not in files.values()
    for name, content in files.items():
        write(OUT / "config_json" / f"{name}.json", content)


# tokenizer.json


def byte_alphabet():
    letters, other = [], 256
    for byte in range(256):
        if 33 <= byte <= 126 or (161 <= byte and byte != 173):
            letters.append(chr(byte))
        else:
            letters.append(chr(other))
            other += 1
    return letters


def tokenizer_file():
    vocab = {letter: i for i, letter in enumerate(byte_alphabet())}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("\u0120", "he")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": len(vocab), "content": "<|end|>", "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}],
        "normalizer": {"type": "NFC"}, "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": [" ".join(merge) for merge in merges]}}


def write_tokenizer_json():
    def text(file):
        return json.dumps(file, ensure_ascii=False)

    def damaged(change):
        file = tokenizer_file()
        change(file)
        return text(file)

    def vocab(**changes):
        return damaged(lambda file: file["model"]["vocab"].update(changes))

    def merge(value):
        return damaged(lambda file: file["model"]["merges"].append(value))

    def added(**changes):
        return damaged(lambda file: file["added_tokens"][0].update(changes))

    def split(expression):
        def change(file):
            file["pre_tokenizer"]["use_regex"] = False
            step = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
            file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [step, file["pre_tokenizer"]]}
        return damaged(change)

    def nested(file, depth):
        value = {"type": "NFC"}
        for _ in range(depth):
            value = {"type": "Sequence", "normalizers": [value]}
        file["normalizer"] = value

    whole = text(tokenizer_file())
    files = {
        "cut-short": whole[:-100],
        "not-an-object": "[]",
        "nested-too-deep": whole.replace('"padding": null', '"padding": ' + "[" * 50000 + "]" * 50000),
        "normalizers-nested-too-deep": damaged(lambda file: nested(file, 100)),
        "member-twice": whole.replace('"version": "1.0"', '"version": "1.0", "version": "1.0"'),
        "id-beyond-the-vocabulary": vocab(he=100000),
        "id-beyond-64-bits": whole.replace('"he": 256', '"he": 99999999999999999999'),
        "id-negative": vocab(he=-1),
        "id-fractional": vocab(he=256.5),
        "id-twice": vocab(he=257),
        "token-empty": vocab(**{"": 261}),
        "byte-without-a-token": damaged(lambda file: file["model"]["vocab"].update(
            {"zz": file["model"]["vocab"].pop("z")})),
        "merge-of-an-unknown-token": merge("qq a"),
        "merge-to-an-unknown-token": merge("q z"),
        "merge-without-a-space": merge("he"),
        "merge-of-three": merge(["h", "e", "l"]),
        "merge-twice": merge("h e"),
        "added-token-beyond-the-vocabulary": added(id=4000),
        "added-token-negative": added(id=-1),
        "added-token-at-anothers-id": added(id=5),
        "added-token-empty": added(content=""),
        "pre-tokenizer-unknown": damaged(lambda file: file.update(pre_tokenizer={"type": "Whitespace"})),
        "model-unknown": damaged(lambda file: file["model"].update(type="WordPiece")),
        "expression-not-closed": split("(\\p{L}+"),
        "expression-of-unknown-syntax": split("\\w+"),
        "expression-that-matches-nothing": split("a*"),
        "expression-nested-too-deep": split("(" * 5000 + "a" + ")" * 5000),
    }
    assert len(set(files.values())) == len(files) and whole not in files.values()
    for name, content in files.items():
        write(OUT / "tokenizer_json" / f"{name}.json", content)
    write(SEEDS / "tokenizer_json" / "gpt2-expression", whole)
    write(SEEDS / "tokenizer_json" / "own-expression", split("(?i:'s|'t)|\\p{N}|\\s+(?!\\S)|[^\\s\\p{N}]+"))


# tokenizer.model: a protobuf message of SentencePiece.


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def number(field, value):
    return varint(field << 3) + varint(value)


def block(field, content):
    content = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(content)) + content


NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)


def piece(text, kind=NORMAL, score=0.0):
    return block(1, block(1, text) + varint(2 << 3 | 5) + struct.pack("<f", score) + number(3, kind))


def write_tokenizer_model():
    space = "\u2581"
    first = [piece("<unk>", UNKNOWN), piece("<s>", CONTROL), piece("</s>", CONTROL)]
    some = [piece(space), piece("a", score=-1), piece("b", score=-2), piece("ab", score=-0.5)]
    bytes_ = [piece("<0x%02X>" % byte, BYTE) for byte in range(256)]

    def trainer(model_type=2, fallback=False, extra=b""):
        return block(2, number(3, model_type) + number(35, int(fallback)) + extra)

    def file(pieces=some, head=first, last=trainer()):
        return b"".join(head) + b"".join(pieces) + last

    def charsmap(content):
        return block(3, block(1, "user_defined") + block(2, content))

    files = {
        "empty-file": b"",
        "length-beyond-the-end": file() + b"\x0a\x7f" + b"abc",
        "length-of-2-to-the-63": file() + b"\x0a" + varint(1 << 63) + b"abc",
        "varint-cut-short": file() + b"\x80",
        "varint-of-eleven-bytes": file() + b"\x08" + b"\xff" * 10 + b"\x01",
        "float-cut-short": file() + varint(9 << 3 | 5) + b"\x00\x00",
        "field-number-zero": file() + b"\x00\x01",
        "group": file() + b"\x0b\x0c",
        "piece-cut-short": file() + b"\x0a\x03" + b"\x0a\x05a",
        "piece-type-zero": file(some + [piece("c", 0)]),
        "piece-type-seven": file(some + [piece("c", 7)]),
        "piece-empty": file(some + [piece("")]),
        "piece-twice": file(some + [piece("a")]),
        "piece-no-utf8": file(some + [piece(b"\xc3(")]),
        "score-not-a-number": file(some + [piece("c", score=float("nan"))]),
        "byte-with-a-sign": file(some + bytes_[:255] + [piece("<0x-1>", BYTE)]),
        "byte-of-one-digit": file(some + bytes_[:255] + [piece("<0xF>", BYTE)]),
        "byte-missing": file(some + bytes_[:255], last=trainer(fallback=True)),
        "no-pieces": trainer(),
        "neither-beginning-nor-end": file(head=first[:1]),
        "no-unknown-piece": file(head=first[1:]),
        "second-unknown-piece": file(some + [piece("<unknown>", UNKNOWN)]),
        "unknown-surface-no-utf8": file(last=trainer(extra=block(44, b" \xe2\x81"))),
        "model-of-words": file(last=trainer(model_type=3)),
        "character-map-cut-short": file() + charsmap(b"\x08\x00"),
        "character-map-beyond-the-end": file() + charsmap(struct.pack("<I", 1024) + b"\x00" * 16),
        "character-map-without-units": file() + charsmap(bytes(4) + b"a\x00"),
        "character-map-of-half-units": file() + charsmap(struct.pack("<I", 6) + b"\x00" * 16),
    }
    assert len(set(files.values())) == len(files)
    for name, content in files.items():
        write(OUT / "tokenizer_model" / f"{name}.model", content)
    write(SEEDS / "tokenizer_model" / "no-bytes", file())
    write(SEEDS / "tokenizer_model" / "bytes", file(some + bytes_, last=trainer(fallback=True)))
    write(SEEDS / "tokenizer_model" / "user-and-unused",
          file(some + [piece("[end]", USER), piece(space + "a", UNUSED, -0.1)]))


write_safetensors()
write_shard_index()
write_config_json()
write_tokenizer_json()
write_tokenizer_model()
