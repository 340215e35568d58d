"""Reports words that comments and names must not use (words.txt).

    words.py FOLDER…       checks *.rs, *.sh and *.py below the folders; fails if it finds one
    words.py --self-test   checks the checker

String literals are not checked: texts that users read have other rules.
"""

import io
import keyword
import re
import sys
import tokenize
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]

# What a Rust file is made of, as far as it matters here. Block comments nest: they are scanned by hand.
RUST = re.compile(
    r"""(?P<line>//[^\n]*)
    | (?P<block>/\*)
    | (?P<raw>\b(?:b|c)?r(?P<hashes>\#*)".*?"(?P=hashes))
    | (?P<string>\b[bc]?"(?:\\.|[^"\\])*"|"(?:\\.|[^"\\])*")
    | (?P<char>\bb'(?:\\.|[^'\\])'|'(?:\\(?:x..|u\{[^}]*\}|.)|[^'\\])')
    | (?P<lifetime>'\w+)
    | (?P<name>(?:r\#)?[A-Za-z_]\w*)
    """,
    re.VERBOSE | re.DOTALL,
)
WORDS_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


class Table:
    """The rows of words.txt."""

    def __init__(self, text):
        self.words, self.names = [], []
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            pattern, arrow, instead = line.partition(" -> ")
            if not arrow or not instead.strip():
                sys.exit(f"words.txt:{number}: a line must be: PATTERN -> what to say instead")
            if pattern == pattern.upper():
                self.names.append((re.compile(pattern), instead))
            else:
                self.words.append((re.compile(rf"(?<!\w)(?:{pattern})(?!\w)", re.IGNORECASE), instead))

    def in_text(self, text):
        """Yields offset, word and replacement."""
        for pattern, instead in self.words:
            for match in pattern.finditer(text):
                yield match.start(), match[0], instead

    def in_name(self, name):
        for pattern, instead in self.names:
            if pattern.fullmatch(name):
                yield name, instead
        for _, _, instead in self.in_text(" ".join(WORDS_OF_NAME.findall(name))):
            yield name, instead


def end_of_block(source, start):
    depth, at = 0, start
    while True:
        mark = re.compile(r"/\*|\*/").search(source, at)
        if not mark:
            return len(source)
        depth += 1 if mark[0] == "/*" else -1
        at = mark.end()
        if depth == 0:
            return at


def rust_tokens(source):
    """Yields ("comment" | "name", offset, text)."""
    at = 0
    while match := RUST.search(source, at):
        at = match.end()
        if match["line"]:
            yield "comment", match.start(), match[0]
        elif match["block"]:
            at = end_of_block(source, match.start())
            yield "comment", match.start(), source[match.start() : at]
        elif match["name"]:
            yield "name", match.start(), match[0].removeprefix("r#")


def shell_tokens(source):
    """Yields whole-line and trailing comments, and the names of functions and variables that are set."""
    offset = 0
    for line in source.splitlines(keepends=True):
        code = line
        for mark in re.finditer(r"(?:^|(?<=\s))#(?!!)", line):
            # Not within quotes.
            if all(line.count(quote, 0, mark.start()) % 2 == 0 for quote in "'\""):
                yield "comment", offset + mark.start(), line[mark.start() :].rstrip("\n")
                code = line[: mark.start()]
                break
        for name in re.finditer(r"(?:^|[\s;(])([A-Za-z_]\w*)(?=\(\)|\+?=)", code):
            yield "name", offset + name.start(1), name[1]
        offset += len(line)


def python_tokens(source):
    """Yields comments, docstrings and names."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    at_statement = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        offset = starts[token.start[0] - 1] + token.start[1]
        if token.type == tokenize.COMMENT or token.type == tokenize.STRING and at_statement:
            yield "comment", offset, token.string
        elif token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            yield "name", offset, token.string
        if token.type != tokenize.COMMENT:
            at_statement = token.type in (tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT)


TOKENS = {".rs": rust_tokens, ".sh": shell_tokens, ".py": python_tokens}


def check(source, kind, table):
    """Yields line, word and replacement. A name is reported once."""

    def line_of(offset):
        return source.count("\n", 0, offset) + 1

    reported = set()
    paragraph, end = "", 0
    found = []

    def flush():
        # Code in backquotes goes; then a phrase may span lines, and each character keeps its offset.
        text = re.sub(r"`[^`\n]*`", lambda code: "`" * len(code[0]), paragraph)
        text = re.sub(r"\n[ \t]*(?://[/!]?|\#|\*(?!/))", lambda mark: " " * len(mark[0]), text)
        squeezed, offsets = [], []
        for index, char in enumerate(text):
            char = " " if char.isspace() else char
            if char == " " and squeezed and squeezed[-1] == " ":
                continue
            squeezed.append(char)
            offsets.append(index)
        for offset, word, instead in table.in_text("".join(squeezed)):
            found.append((line_of(end - len(paragraph) + offsets[offset]), word, instead))

    for token, offset, text in TOKENS[kind](source):
        if token == "comment":
            if paragraph and source[end:offset].strip() == "" and source.count("\n", end, offset) == 1:
                paragraph += source[end:offset] + text
            else:
                flush()
                paragraph = text
            end = offset + len(text)
        elif text not in reported:
            for word, instead in table.in_name(text):
                reported.add(text)
                found.append((line_of(offset), word, instead))
    flush()
    return sorted(set(found))


def self_test(table):
    """Every word of the samples is found where it must be, and none where it must not."""
    rust = '''
        //! Whoever reads `nobody` need
        //! not ask.
        let text = "whoever"; let raw = r#"whoever " // whoever"#; let byte = b"whoever\\" whoever";
        let quote = '"'; // beside
        let escaped = '\\''; /* anew /* in vain */ told */ fn key_is_to_be_read<'his>() {}
        struct NobodyWaits; const PATIENCE: u8 = b'"'; let patience = "it is no use";
        // There is no row, and it is no longer read. It is no
        // use.
    '''.replace("\n        ", "\n")
    python = '"""Told."""\nnobody = "whoever"  # beside\n'
    shell = "say 'anew # anew' # mended\n# need\n# not\nburied=1\n"
    samples = [
        (".rs", rust, [(2, "Whoever"), (2, "need not"), (5, "beside"), (6, "anew"), (6, "in vain"),
                       (6, "key_is_to_be_read"), (6, "told"), (7, "NobodyWaits"), (7, "PATIENCE"), (8, "is no")]),
        (".py", python, [(1, "Told"), (2, "beside"), (2, "nobody")]),
        (".sh", shell, [(1, "mended"), (2, "need not"), (4, "buried")]),
    ]
    for kind, source, expected in samples:
        found = [(line, word) for line, word, _ in check(source, kind, table)]
        if found != expected:
            sys.exit(f"words.py: the self-test of {kind} failed:\n  expected {expected}\n  found    {found}")


def main(arguments):
    table = Table((REPOSITORY / "scripts/words.txt").read_text())
    if arguments == ["--self-test"]:
        return self_test(table)
    count = 0
    for folder in arguments:
        path = REPOSITORY / folder
        files = sorted(file for file in path.rglob("*") if file.suffix in TOKENS and file.is_file())
        if not files and path.suffix in TOKENS:
            files = [path]
        if not files:
            sys.exit(f"words.py: {folder} has no file to check")
        for file in files:
            for line, word, instead in check(file.read_text(), file.suffix, table):
                print(f"{file.relative_to(REPOSITORY)}:{line}: {word} -> {instead}")
                count += 1
    if count:
        sys.exit(f"words.py: {count} words to replace")


if __name__ == "__main__":
    main(sys.argv[1:])
