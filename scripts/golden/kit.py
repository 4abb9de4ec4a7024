"""What every golden fixture is made with: drawn numbers, the files, the measured margins and the command line.

Nothing here depends on numpy's random generators, file writers or versions: numbers come from SplitMix64 on integers,
and safetensors and npy files are written byte by byte.
"""

import argparse
import hashlib
import json
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np

TOKENS = 24  # Length of the sequence whose logits are kept.
PROMPT = 8  # Ids before a greedy continuation.
CONTINUATION = 64  # Length of a greedy continuation.

# What a fixture must leave between the choice that was made and the next one, so that an implementation in float32
# makes the same choice: the smallest difference of router probability between the last expert chosen and the first one
# left out, and of logit between the best token and the second.
ROUTER_GAP = 1e-4
LOGIT_GAP = 2e-3
# What every kept float64 number must keep from a point where its rounding to float32 would change, relative to the
# number: sums in another order, as another processor or numpy may take them, then give the same bytes.
ROUNDING_GAP = 1e-13

GOLDEN_RATIO = 0x9E3779B97F4A7C15


def draw_integers(seed, name, count):
    """SplitMix64 (Steele, Lea and Flood, 2014), keyed by the seed and the name; uint64 [count]."""
    key = int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little")
    with np.errstate(over="ignore"):
        z = np.uint64(key) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN_RATIO)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def draw(seed, name, shape):
    """Numbers of mean 0 and variance 1: twelve uniform 16-bit integers, summed exactly. Between -6 and 6."""
    count = int(np.prod(shape))
    words = draw_integers(seed, name, 3 * count)
    total = np.zeros(count, dtype=np.int64)
    for part in range(3):
        for shift in (0, 16, 32, 48):
            total += ((words[part::3] >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64)
    return ((2 * total - 12 * 65535) / 131072.0).reshape(shape)


def draw_ids(seed, name, count, low, high):
    """Token ids from low to high - 1."""
    return [low + int(z % np.uint64(high - low)) for z in draw_integers(seed, name, count)]


def to_bf16(values):
    """Rounds to the nearest bf16, ties to even; returns (uint16, the same values in float64)."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32).astype(np.uint64)
    halves = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return halves, from_bf16(halves)


def from_bf16(halves):
    return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def make_weights(seed, shapes):
    """shapes: name -> (shape, mean, standard deviation). Returns (name -> uint16, name -> float64)."""
    stored, values = {}, {}
    for name, (shape, mean, spread) in shapes.items():
        stored[name], values[name] = to_bf16(mean + spread * draw(seed, name, shape))
    return stored, values


def write_safetensors(path, stored):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name in sorted(stored):
        raw = stored[name].astype("<u2").tobytes()
        shape = list(stored[name].shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(path):
    """name -> float64, of a file of bf16 tensors."""
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    values = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        halves = np.frombuffer(raw[8 + length + begin : 8 + length + end], dtype="<u2").astype(np.uint16)
        values[name] = from_bf16(halves).reshape(entry["shape"])
    return values


def write_npy(path, values):
    """float32, little endian, C order: version 1.0 of numpy's format."""
    shape = "(" + "".join(f"{n}, " for n in values.shape).rstrip(" ") + ")" if values.ndim == 1 else str(values.shape)
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }"
    text += " " * (-(10 + len(text) + 1) % 64) + "\n"
    raw = np.ascontiguousarray(values).astype("<f4").tobytes()
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode("latin1") + raw)


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def compact(value):
    """JSON with one line for each key of the outermost object."""
    lines = [f" {json.dumps(key)}: {json.dumps(entry, separators=(',', ':'))}" for key, entry in value.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def rounding_gap(values):
    """How near the nearest value lies to a point where rounding to float32 changes, relative to its size."""
    values = np.abs(values[values != 0]).ravel()
    near = values.astype(np.float32)
    other = np.where(near.astype(np.float64) <= values, np.nextafter(near, np.float32(np.inf)),
                     np.nextafter(near, np.float32(0)))
    middle = (near.astype(np.float64) + other.astype(np.float64)) / 2
    return float((np.abs(values - middle) / values).min())


def best_and_gap(logits):
    order = np.argsort(-logits, kind="stable")
    return int(order[0]), float(logits[order[0]] - logits[order[1]])


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def top(probabilities, count):
    """The count likeliest experts, likeliest first, and by how much the last one beats the best that was left out."""
    order = np.argsort(-probabilities, kind="stable")
    gap = probabilities[order[count - 1]] - probabilities[order[count]]
    return [int(e) for e in order[:count]], float(gap)


def require_margins(name, margins):
    wanted = {"router": ROUTER_GAP, "logit": LOGIT_GAP, "rounding": ROUNDING_GAP}
    for key, least in wanted.items():
        if margins[key] < least:
            raise SystemExit(f"{name}: the {key} margin is {margins[key]:.2g}, wanted {least:.2g}; choose another seed")


def same_files(made, kept):
    names = sorted(path.name for path in made.iterdir())
    other = sorted(path.name for path in kept.iterdir())
    if names != other:
        raise SystemExit(f"{kept}: holds {other}, made {names}")
    for name in names:
        if (made / name).read_bytes() != (kept / name).read_bytes():
            raise SystemExit(f"{kept / name}: differs from what is made now")


def require_same(what, found, kept):
    """That float64 numbers, summed in another order, round to the float32 numbers kept."""
    differ = int((found.astype(np.float32) != kept).sum())
    if differ or found.shape != kept.shape:
        apart = np.abs(found - kept).max() if found.shape == kept.shape else np.inf
        raise SystemExit(f"{what}: {differ} of {kept.size} differ, by at most {apart:.3g}")
    print(f"  {what}: all {kept.size} round to the same float32")


def require_apart(what, found, wanted, least):
    apart = float(np.abs(np.asarray(found) - np.asarray(wanted)).max())
    if not apart >= least:
        raise SystemExit(f"{what}: the fixture cannot tell, the logits are only {apart:.3g} apart, wanted {least:.3g}")
    print(f"  would show {what}: {apart:.1e}")


def command_line(doc, fixtures, make, check):
    """make(name, folder) writes one fixture; check(name, folder) compares one with a second computation."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the folder that holds one folder for each fixture")
    parser.add_argument("--check", action="store_true",
                        help="write nothing there: make the files anew, compare them byte for byte with those in the "
                        "folder, and the numbers with a second computation")
    arguments = parser.parse_args()
    for name in fixtures:
        folder = arguments.folder / name
        if arguments.check:
            print(name)
            with tempfile.TemporaryDirectory() as scratch:
                made = Path(scratch)
                make(name, made)
                same_files(made, folder)
            print("  made anew, byte for byte the same")
            check(name, folder)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            make(name, folder)
            print(f"wrote {folder}", file=sys.stderr)
