#!/usr/bin/env python3
"""Turns the .bin files of a Hugging Face model into safetensors, once and offline.

A .bin file is a pickle, and reading a pickle can run whatever its author put into it. OrderMoE never reads one, and
never runs this script: who has only .bin files runs it by hand, best on a machine that may be thrown away. It reads
with torch.load(weights_only=True), which restores tensors and refuses everything else; there is no way around that
refusal here. Needs Python 3.9, PyTorch 2.6 or newer (earlier releases had a hole in weights_only) and safetensors:

    pip install torch safetensors
    scripts/convert_bin_checkpoint.py DOWNLOADED-FOLDER NEW-FOLDER
    ordermoe model verify --model NEW-FOLDER

The new folder gets a .safetensors file for each .bin file, the index where there are several, and copies of
config.json and the tokenizer's files. It appears in one step, once everything is written.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

INDEX = "pytorch_model.bin.index.json"
KEPT = ("config.json", "generation_config.json", "special_tokens_map.json", "added_tokens.json",
        "chat_template.jinja", "vocab.json", "merges.txt", "spiece.model")


def fail(message):
    sys.exit(f"convert_bin_checkpoint: {message}")


def bin_files(folder):
    """The files of weights, in order, without leaving the folder."""
    index = folder / INDEX
    if not index.exists():
        single = folder / "pytorch_model.bin"
        if not single.is_file():
            fail(f"{folder}: has neither pytorch_model.bin nor {INDEX}; name the folder of a model")
        return [single.name], None
    try:
        weight_map = json.loads(index.read_text())["weight_map"]
        names = sorted(set(weight_map.values()))
    except (ValueError, KeyError, AttributeError, TypeError) as problem:
        fail(f"{index}: not an index ({problem}); fetch it again")
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".bin"):
            fail(f"{index}: {name!r} is not the plain name of a .bin file in this folder")
        if not (folder / name).is_file():
            fail(f"{index}: names {name}, but there is no such file; fetch the missing shard")
    return names, weight_map


def read_tensors(path, torch):
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:  # Whatever the reader refuses, nothing of the file is used.
        fail(f"{path}: refused by torch.load(weights_only=True): {problem}")
    if not isinstance(content, dict) or not all(
            isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items()):
        fail(f"{path}: holds something else than tensors by name; refused")
    kinds = (torch.float32, torch.float16, torch.bfloat16)
    tensors, seen = {}, {}
    for name, tensor in content.items():
        if tensor.is_sparse or tensor.dtype not in kinds:
            fail(f"{path}: tensor '{name}' is {tensor.dtype}, expected dense float32, float16 or bfloat16; refused")
        # Tensors that share memory are written apart: a safetensors file knows no sharing.
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset())
        tensors[name] = tensor.clone() if place in seen else tensor.contiguous()
        seen[place] = name
    return tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path, help="folder with .bin files")
    parser.add_argument("target", type=Path, help="folder to write; may not be there yet")
    options = parser.parse_args()
    try:
        import torch
        from safetensors.torch import save_file
    except ImportError as problem:
        fail(f"{problem}; run: pip install torch safetensors")
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 6):
        fail(f"PyTorch {torch.__version__} is older than 2.6, whose weights_only is the first without a known hole")
    if options.target.exists():
        fail(f"{options.target}: is there already; choose another destination")
    names, weight_map = bin_files(options.source)
    options.target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=options.target.name + ".", dir=options.target.parent))
    try:
        new_map, total = {}, 0
        for number, name in enumerate(names, 1):
            tensors = read_tensors(options.source / name, torch)
            if weight_map is not None:
                listed = {tensor for tensor, file in weight_map.items() if file == name}
                if listed != set(tensors):
                    odd = sorted(listed ^ set(tensors))[0]
                    fail(f"{options.source / name}: disagrees with {INDEX} about tensor '{odd}'")
            out = ("model.safetensors" if len(names) == 1
                   else f"model-{number:05}-of-{len(names):05}.safetensors")
            save_file(tensors, building / out, metadata={"format": "pt"})
            new_map.update({tensor: out for tensor in tensors})
            total += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
            print(f"{name} -> {out}: {len(tensors)} tensors", flush=True)
            del tensors
        if len(names) > 1:
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(new_map.items()))}
            (building / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
        for file in sorted(options.source.iterdir()):
            if file.is_file() and (file.name in KEPT or file.name.startswith("tokenizer")):
                shutil.copyfile(file, building / file.name)
        building.chmod(0o755)
        os.rename(building, options.target)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


if __name__ == "__main__":
    main()
