#!/usr/bin/env python3
"""Ids of hard texts by a second implementation of both kinds of tokenizer, written from the formats' descriptions
with Python's standard library alone: no regular expressions, no heaps, every step the slowest way that is plainly
right. It shares nothing with model/.

    scripts/golden/tokenizers.py            writes into test/data: tokenizer-qwen/, tokenizer-neox/ and
                                            tokenizer-mixtral/, and hard.json of mixtral-tiny/, tokenizer-other/,
                                            tokenizer-unigram/
    scripts/golden/tokenizers.py --check    fails where they differ from what is there

Byte-level BPE (Radford et al. 2019; tokenizer.json of Hugging Face's tokenizers): text is normalised to NFC where the
file says so, added tokens are taken out, the rest is cut by hand-written scanners for the two expressions that occur
(GPT-2's and Qwen's), and in each piece the earliest merge of the list is applied, leftmost first, until none applies.
Categories and NFC are those of Python's unicodedata, white space is the property White_Space.

SentencePiece (Kudo and Richardson 2018; sentencepiece_model.proto): the protobuf message is walked, the keys of
the character map's double array are listed once and replaced longest first, and the neighbours whose joined piece
scores best are joined, leftmost first, until none can be; or, for a unigram model (Kudo 2018), the path of the highest
sum of scores is looked for.
"""
import argparse
import json
import pathlib
import struct
import sys
import unicodedata

DATA = pathlib.Path(__file__).resolve().parents[2] / "test" / "data"
MADE_BY = "scripts/golden/tokenizers.py, clean-room Python without third-party packages"

# Texts


HARD = [
    "", " ", "  ", "\n", "\t\t", "a", " a", "a ", "  a  b  ", "hello", "hello hello the the",
    "I'll you'LL he's HE'S we've 'tis don't can''t 'S'\u017f 're", "'", "''s'",
    "12345 1a2b 3.14 \u00bd\u2167\u0663\u096a", "tabs\t\tand\tnewlines\n\n\nand\r\n\r\nCRLF\r\n", "   three leading",
    "trailing     ", " \n ", "  \n  \n  x", "x \r\n\t y\r", "nbsp\u00a0here\u00a0\u00a0there\u00a0",
    "ideographic\u3000space \u3000 x", "line\u2028separator\u2029paragraph", "next\u0085line\x0b\x0c",
    "mongolian\u180e vowel \u180e separator", "zero\u200bwidth\ufeffbom", "caf\u00e9 cafe\u0301 e\u0301\u0302",
    "\u0301 starts with a mark", "\u6f22\u5b57 and \u304b\u306aabc123\ud55c\uae00", "\u1112\u1161\u11ab conjoined",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd", "\u0939\u093f\u0928\u094d\u0926\u0940",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 family", "\U0001f1e9\U0001f1ea\U0001f44d\U0001f3fd!",
    "code: if (a[0] != b->c) { return x...; } // ok\n", "snake_case __init__ $var @user #tag 100%", "....  ... .",
    "a\n b\n  c\n\n   d", "<|end|>", "a<|end|>b <|end|>> c<|end|<|end|>>>", " <tool> the <tool>hello", "<|en d|> <|end|",
    "nul\0inside", "\U0001d538\U0001d553\U0001d7d9", "\u01c5\u02b0\u24d0\u2170", "\ufb01ne \ufb03 \u2460 \u212b \u2126",
    "\u2581already \u2581\u2581 marked", "<s> </s> <unk> <0x41>", "the fox [end] the [end][end]", "\ufffd \ufffd\ufffd",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "abababababababababa", "\U0010ffff\ue000\ufdd0", "x" * 300, "\u00df\u1e9e\u0130",
    "The quick brown fox jumps over the lazy dog.", "A MIXED case Sentence, WITH 42 numbers & signs!?",
]


class Random:
    """xorshift64* (Vigna 2016)."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state ^= self.state >> 12
        self.state ^= self.state << 25 & 0xFFFFFFFFFFFFFFFF
        self.state ^= self.state >> 27
        return (self.state * 0x2545F4914F6CDD1D & 0xFFFFFFFFFFFFFFFF) % n


def random_texts(count):
    favourites = (" \t\n\r\u00a0\u3000\u2028\u180e\u0085'sStTrevVmMlLdD019.,!<|>end\u00e9\u0301\u017f\u212a\u6f22\u3042"
                  "\u05d0\u0966\u00bd\u200d\U0001f469\U0001f3fd\u0130\u00df\ufb01\u2581theoabc")
    random = Random(20231)
    texts = []
    while len(texts) < count:
        text = ""
        for _ in range(1 + random.below(30)):
            if random.below(4):
                text += favourites[random.below(len(favourites))]
            else:
                c = chr(random.below(0x3000 if random.below(2) else 0x110000))
                # Surrogates are no characters; unassigned ones differ between versions of Unicode.
                if unicodedata.category(c) not in ("Cs", "Cn"):
                    text += c
        texts.append(text)
    return texts


# Byte-level BPE


WHITE_SPACE = {chr(c) for c in [*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
                                0x205F, 0x3000]}
ENDINGS = ("s", "t", "re", "ve", "m", "ll", "d")


def is_letter(c):
    return unicodedata.category(c)[0] == "L"


def is_number(c):
    return unicodedata.category(c)[0] == "N"


def is_space(c):
    return c in WHITE_SPACE


def is_sign(c):
    return not (is_space(c) or is_letter(c) or is_number(c))


def is_line_end(c):
    return c in "\r\n"


def run(text, at, test):
    end = at
    while end < len(text) and test(text[end]):
        end += 1
    return end - at


def ending(text, at, any_case):
    """Characters of 's, 't, 're ... at this place."""
    if text[at] != "'":
        return 0
    for end in ENDINGS:
        given = text[at + 1:at + 1 + len(end)]
        if any_case:
            given = "".join("s" if c == "\u017f" else c.lower() if c.isascii() else c for c in given)
        if given == end:
            return 1 + len(end)
    return 0


def spaces(text, at):
    """White space, but for its last character where something follows and more than one is there."""
    n = run(text, at, is_space)
    return n - 1 if n > 1 and at + n < len(text) else n


def next_gpt2(text, at):
    """'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"""
    if n := ending(text, at, False):
        return n
    space = int(text[at] == " ")
    for test in (is_letter, is_number, is_sign):
        if n := run(text, at + space, test):
            return space + n
    return spaces(text, at)


def next_qwen(text, at):
    """(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|
    \\s+(?!\\S)|\\s+"""
    if n := ending(text, at, True):
        return n
    c = text[at]
    lead = int(not (is_line_end(c) or is_letter(c) or is_number(c)))
    if n := run(text, at + lead, is_letter):
        return lead + n
    if is_number(c):
        return 1
    space = int(c == " ")
    if n := run(text, at + space, is_sign):
        return space + n + run(text, at + space + n, is_line_end)
    for n in range(run(text, at, is_space), 0, -1):
        if is_line_end(text[at + n - 1]):
            return n
    return spaces(text, at)


def pieces(text, scan):
    at, found = 0, []
    while at < len(text):
        n = scan(text, at)
        found.append(text[at:at + n])
        at += n
    return found


def byte_letters():
    letters, other = [], 256
    for byte in range(256):
        if 33 <= byte <= 126 or (161 <= byte and byte != 173):
            letters.append(chr(byte))
        else:
            letters.append(chr(other))
            other += 1
    return letters


LETTERS = byte_letters()


def merge(piece, merges):
    symbols = [LETTERS[byte] for byte in piece.encode()]
    while True:
        best = None
        for i in range(len(symbols) - 1):
            rank = merges.get((symbols[i], symbols[i + 1]))
            if rank is not None and (best is None or rank < best[0]):
                best = (rank, i)
        if best is None:
            return symbols
        i = best[1]
        symbols[i:i + 2] = [symbols[i] + symbols[i + 1]]


def learn_merges(texts, scan, count):
    """The most frequent pair of neighbours, ties by text, again and again."""
    words = {}
    for text in texts:
        for piece in pieces(text, scan):
            key = tuple(LETTERS[byte] for byte in piece.encode())
            words[key] = words.get(key, 0) + 1
    merges = []
    while len(merges) < count:
        pairs = {}
        for word, n in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] = pairs.get(pair, 0) + n
        if not pairs:
            break
        chosen = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(chosen)
        joined = {}
        for word, n in words.items():
            symbols, i = [], 0
            while i < len(word):
                if word[i:i + 2] == chosen:
                    symbols.append(word[i] + word[i + 1])
                    i += 2
                else:
                    symbols.append(word[i])
                    i += 1
            joined[tuple(symbols)] = joined.get(tuple(symbols), 0) + n
        words = joined
    return merges


QWEN = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
        "\\s+(?!\\S)|\\s+")


def added(id_, content, special, normalized=False):
    return {"id": id_, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": normalized, "special": special}


def byte_level_file(kind):
    """A tokenizer.json shaped as Qwen's, or as GPT-NeoX's and OLMoE's, with merges learned from the hard texts."""
    scan = next_qwen if kind == "qwen" else next_gpt2
    merges = learn_merges(HARD + ["the theory of the other brothers", "he hello hell shell"] * 3, scan, 240)
    vocab = {LETTERS[byte]: 255 - byte for byte in range(256)}
    for left, right in merges:
        vocab.setdefault(left + right, len(vocab))
    n = len(vocab)

    def byte_level(use_regex):
        return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}

    file = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": {"type": "NFC"},
            "pre_tokenizer": byte_level(True), "post_processor": byte_level(False), "decoder": byte_level(False),
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                      "end_of_word_suffix": "", "fuse_unk": False, "vocab": vocab}}
    if kind == "qwen":
        file["added_tokens"] = [added(n, "<|end|>", True), added(n + 1, "<|end|>>", True),
                                added(n + 2, "<tool>", False)]
        split = {"type": "Split", "pattern": {"Regex": QWEN}, "behavior": "Isolated", "invert": False}
        file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level(False)]}
        file["model"]["merges"] = [" ".join(pair) for pair in merges]
    else:
        file["added_tokens"] = [added(n, "<|end|>", True), added(n + 1, "   ", False, True),
                                added(n + 2, "  ", False, True)]
        file["model"]["merges"] = [list(pair) for pair in merges]
    return file


def find_added(text, tokens):
    """Parts (text, None) and (None, id): the longest token at each place."""
    parts, between, at = [], "", 0
    while at < len(text):
        found = max((token for token in tokens if text.startswith(token["content"], at)),
                    key=lambda token: len(token["content"]), default=None)
        if found is None:
            between += text[at]
            at += 1
            continue
        parts += [(between, None), (None, found["id"])]
        between = ""
        at += len(found["content"])
    return parts + [(between, None)]


def encode_byte_level(file, kind, text):
    scan = next_qwen if kind == "qwen" else next_gpt2
    ranks = {}
    for rank, pair in enumerate(file["model"]["merges"]):
        ranks[tuple(pair.split(" ") if isinstance(pair, str) else pair)] = rank
    ids = []
    for rest, token in find_added(text, [t for t in file["added_tokens"] if not t["normalized"]]):
        if token is not None:
            ids.append(token)
            continue
        rest = unicodedata.normalize("NFC", rest)
        for last, inner in find_added(rest, [t for t in file["added_tokens"] if t["normalized"]]):
            if inner is not None:
                ids.append(inner)
                continue
            for piece in pieces(last, scan):
                ids += [file["model"]["vocab"][symbol] for symbol in merge(piece, ranks)]
    return ids


# SentencePiece


def fields(message):
    """(number, value) of a protobuf message: integers, four bytes, or bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        elif tag & 7 == 2:
            size = varint()
            yield tag >> 3, message[at:at + size]
            at += size
        else:
            size = {1: 8, 5: 4}[tag & 7]
            yield tag >> 3, message[at:at + size]
            at += size


def character_map(blob):
    """All keys of the double array and what replaces them."""
    size = struct.unpack("<I", blob[:4])[0]
    units = struct.unpack(f"<{size // 4}I", blob[4:4 + size])
    texts = blob[4 + size:]
    found = {}

    def offset(unit):
        return (unit >> 10) << ((unit & 512) >> 6)

    def walk(node, key):
        for label in range(1, 256):
            child = node ^ label
            if child >= len(units) or units[child] & 0x800000FF != label:
                continue
            below = child ^ offset(units[child])
            if units[child] & 256:
                begin = units[below] & 0x7FFFFFFF
                found[key + bytes([label])] = texts[begin:texts.index(b"\0", begin)]
            walk(below, key + bytes([label]))

    walk(offset(units[0]), b"")
    return found


def to_float(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


class SentencePiece:
    NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)

    def __init__(self, blob):
        self.pieces, self.map = [], {}
        self.fallback = self.suffix = False
        self.prefix = self.trim = self.escape = True
        for number, value in fields(blob):
            if number == 1:
                text, score, kind = "", 0.0, self.NORMAL
                for inner, content in fields(value):
                    if inner == 1:
                        text = content.decode()
                    elif inner == 2:
                        score = struct.unpack("<f", content)[0]
                    elif inner == 3:
                        kind = content
                self.pieces.append((text, score, kind))
            elif number == 2:
                trainer = dict(fields(value))
                assert trainer.get(3, 1) in (1, 2), "neither unigram nor BPE"
                self.unigram = trainer.get(3, 1) == 1
                self.suffix = bool(trainer.get(24, 0))
                self.fallback = bool(trainer.get(35, 0))
            elif number == 3:
                rules = dict(fields(value))
                self.prefix, self.trim, self.escape = (bool(rules.get(key, 1)) for key in (3, 4, 5))
                if rules.get(2):
                    self.map = character_map(rules[2])
        self.ids = {text: i for i, (text, _, kind) in enumerate(self.pieces)
                    if kind in (self.NORMAL, self.USER, self.UNUSED)}
        self.user = [text for text, _, kind in self.pieces if kind == self.USER]
        self.unknown = next(i for i, p in enumerate(self.pieces) if p[2] == self.UNKNOWN)

    def user_at(self, text, at):
        return max((piece for piece in self.user if text.startswith(piece, at)), key=len, default="")

    def normalize(self, text):
        """A list of replacements; white space at the ends and doubled white space goes where the file says so."""
        made, at = [], 0
        while at < len(text):
            if piece := self.user_at(text, at):
                made.append(piece)
                at += len(piece)
                continue
            rest = text[at:].encode()
            key = max((key for key in self.map if rest.startswith(key)), key=len, default=b"")
            if key:
                made.append(self.map[key].decode())
                at += len(key.decode())
            else:
                made.append(text[at])
                at += 1
        if self.trim:
            while made and made[0] == " ":
                made.pop(0)
        if not made:
            return ""
        whole, after_space = "", self.trim
        for part in made:
            if after_space:
                part = part.lstrip(" ")
            whole += part
            if part:
                after_space = self.trim and part.endswith(" ")
        if self.prefix and not self.suffix:
            whole = " " + whole
        mark = "\u2581" if self.escape else " "
        whole = whole.replace(" ", mark)
        if self.trim:  # The library does this last: marks that the text itself ends with go too.
            while whole.endswith(mark):
                whole = whole[:-len(mark)]
        return whole + mark if self.prefix and self.suffix else whole

    def control(self, text):
        return next((i for i, p in enumerate(self.pieces) if p[0] == text and p[2] == self.CONTROL), None)

    def encode(self, text):
        """The library's ids, after the beginning of text or, where there is none as in T5's models, before the end."""
        whole = self.normalize(text)
        ids = self.encode_unigram(whole) if self.unigram else self.encode_bpe(whole)
        begin = self.control("<s>")
        return ids + [self.control("</s>")] if begin is None else [begin] + ids

    def encode_unigram(self, whole):
        """The best path (Viterbi) over the bytes, in the precision of the library's floats: of equal paths the one
        whose last piece is longest; a character that no piece covers costs 10 more than the worst piece."""
        text = whole.encode()
        normal = [p[1] for p in self.pieces if p[2] == self.NORMAL]
        unknown_score = to_float(min(normal) - 10)
        usable = {}
        for i, (piece, score, kind) in enumerate(self.pieces):
            if kind == self.USER:
                usable[piece.encode()] = (i, len(piece.encode()) * max(normal) - 0.1)
            elif kind == self.NORMAL:
                usable[piece.encode()] = (i, score)
        longest = max(map(len, usable), default=1)
        best = {0: (0.0, 0, None)}  # End: score, begin, id.
        at = 0
        while at < len(text):
            here = best[at][0]
            size = len(text[at:].decode()[0].encode())
            covered = False
            for end in range(at + 1, min(at + longest, len(text)) + 1):
                found = usable.get(text[at:end])
                if found is None:
                    continue
                covered = covered or end == at + size
                score = found[1] + here
                if end not in best or to_float(score) > best[end][0]:
                    best[end] = (to_float(score), at, found[0])
            if not covered:
                score = to_float(unknown_score + here)
                if at + size not in best or score > best[at + size][0]:
                    best[at + size] = (score, at, self.unknown)
            at += size
        path, at = [], len(text)
        while at > 0:
            _, begin, piece = best[at]
            path.append((piece, text[begin:at]))
            at = begin
        ids = []
        for piece, covered in reversed(path):
            if piece != self.unknown:
                ids.append(piece)
            elif self.fallback:
                ids += self.bytes_of(covered)
            elif not ids or ids[-1] != self.unknown:
                ids.append(self.unknown)
        return ids

    def bytes_of(self, covered):
        named = {p[0]: i for i, p in enumerate(self.pieces) if p[2] == self.BYTE}
        return [named["<0x%02X>" % byte] for byte in covered]

    def encode_bpe(self, whole):
        symbols, at = [], 0  # (text, frozen, parts)
        while at < len(whole):
            piece = self.user_at(whole, at)
            symbols.append((piece or whole[at], bool(piece), None))
            at += len(piece) or 1
        while True:
            best = None
            for i in range(len(symbols) - 1):
                (left, left_frozen, _), (right, right_frozen, _) = symbols[i], symbols[i + 1]
                at_piece = self.ids.get(left + right)
                if left_frozen or right_frozen or at_piece is None:
                    continue
                score = self.pieces[at_piece][1]
                if best is None or score > best[0]:
                    best = (score, i)
            if best is None:
                break
            i = best[1]
            symbols[i:i + 2] = [(symbols[i][0] + symbols[i + 1][0], False, (symbols[i], symbols[i + 1]))]
        ids = []
        for symbol in symbols:
            self.emit(symbol, ids)
        return ids

    def emit(self, symbol, ids):
        text, _, parts = symbol
        at_piece = self.ids.get(text)
        if at_piece is not None and self.pieces[at_piece][2] == self.UNUSED and parts:
            for part in parts:
                self.emit(part, ids)
        elif at_piece is not None:
            ids.append(at_piece)
        elif self.fallback:
            ids += self.bytes_of(text.encode())
        elif not ids or ids[-1] != self.unknown:
            ids.append(self.unknown)


def cases(texts, encode):
    lines = [json.dumps({"text": text, "ids": encode(text)}) for text in texts]
    return '{"made_by": %s,\n "cases": [\n  %s\n ]}\n' % (json.dumps(MADE_BY), ",\n  ".join(lines))


def files():
    texts = HARD + random_texts(200)
    for kind in ("qwen", "neox"):
        file = byte_level_file(kind)
        yield f"tokenizer-{kind}/tokenizer.json", json.dumps(file, ensure_ascii=False, indent=1) + "\n"
        yield f"tokenizer-{kind}/hard.json", cases(texts, lambda text: encode_byte_level(file, kind, text))
    tiny = (DATA / "mixtral-tiny" / "tokenizer.model").read_bytes()
    # Mixtral's own file leaves white space as it is: remove_extra_whitespaces (field 4 of the normaliser) is 0.
    mixtral = tiny + bytes([3 << 3 | 2, 2, 4 << 3, 0])
    other = (DATA / "tokenizer-other" / "tokenizer.model").read_bytes()
    unigram = (DATA / "tokenizer-unigram" / "spiece.model").read_bytes()
    yield "tokenizer-mixtral/tokenizer.model", mixtral
    for folder, blob in (("mixtral-tiny", tiny), ("tokenizer-mixtral", mixtral), ("tokenizer-other", other),
                         ("tokenizer-unigram", unigram)):
        yield f"{folder}/hard.json", cases(texts, SentencePiece(blob).encode)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    differ = 0
    for name, content in files():
        path = DATA / name
        content = content if isinstance(content, bytes) else content.encode()
        if check:
            if not path.exists() or path.read_bytes() != content:
                print(f"{path}: differs from what this script makes", file=sys.stderr)
                differ += 1
            continue
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
