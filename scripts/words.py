"""Reports words that comments, names and texts must not use (words.txt).

    words.py PATH…          checks the comments and names of *.rs, *.sh and *.py
    words.py --texts PATH…  checks what users read: Markdown outside of code, comments of TOML, all of YAML and of
                            dashboards, and the strings of programs and scripts
    words.py --self-test    checks the checker

A path is a file, or a folder with everything below it.
"""

import io
import keyword
import re
import sys
import tokenize
from pathlib import Path

TABLE = Path(__file__).resolve().with_name("words.txt")
# Folders whose files are not ours, and tests, whose strings no user reads.
FOREIGN = {"node_modules", "target", ".services", "__pycache__"}
TEST = re.compile(r"(^|/)tests?/|(^|/)(tests\.rs|test_[^/]*|[^/]*_test\.\w+|[^/]*\.test\.\w+|[^/]*Test\.java)$")

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
    """The rows of words.txt; with `texts` also those that are for texts alone."""

    def __init__(self, text, texts=False):
        self.words, self.names = [], []
        for number, line in enumerate(text.splitlines(), 1):
            if line == "[texts]":
                if not texts:
                    break
                continue
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


def blank(match):
    """A replacement of the same length, so that offsets stay; line ends stay too. It is part of no word or phrase."""
    return re.sub(r"[^\n]", "\0", match[0])


def spaces(match):
    return re.sub(r"[^\n]", " ", match[0])


IN_BACKQUOTES = re.compile(r"`[^`\n]*`")


def in_phrases(text, table):
    """Yields offset, word and replacement; white space of any length counts as one space."""
    squeezed, offsets = [], []
    for index, char in enumerate(text):
        char = " " if char.isspace() else char
        if char == " " and squeezed and squeezed[-1] == " ":
            continue
        squeezed.append(char)
        offsets.append(index)
    for offset, word, instead in table.in_text("".join(squeezed)):
        yield offsets[offset], word, instead


# Markdown that is not text: blocks of code, comments, tags, inline code, targets of links, addresses.
NOT_MARKDOWN_TEXT = [
    re.compile(r"^[ \t]*(```|~~~).*?^[ \t]*\1[^\n]*$", re.MULTILINE | re.DOTALL),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"</?[a-z][^<>\n]*>"),
    re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL),
    re.compile(r"(?<=\])\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*\)"),
    re.compile(r"^[ ]*\[[^\]]+\]:[^\n]*$", re.MULTILINE),
    re.compile(r"\b[a-z+]+://[^\s)>|]*"),
]


def markdown_texts(source):
    for pattern in NOT_MARKDOWN_TEXT:
        source = pattern.sub(blank, source)
    # A phrase ends with its paragraph.
    at = 0
    for part in re.split(r"(\n[ \t]*\n)", source):
        yield at, part
        at += len(part)


PLACEHOLDER = re.compile(r"\{[^{}\s]*\}")


def rust_strings(source):
    """Yields offset and text of each string, without placeholders. A string of one word is a name, not a text."""
    at = 0
    source = source.partition("\n#[cfg(test)]\nmod ")[0]
    while match := RUST.search(source, at):
        at = match.end()
        if match["block"]:
            at = end_of_block(source, match.start())
        elif text := match["string"] or match["raw"]:
            if " " in text:
                text = PLACEHOLDER.sub(blank, IN_BACKQUOTES.sub(blank, text))
                yield match.start(), text.replace("\\n", "  ").replace("\\\n", " \n")


# Go, Java, JavaScript, TypeScript.
C_STRINGS = re.compile(
    r"""(?P<other>//[^\n]*|/\*.*?\*/|'(?:\\.|[^'\\\n])')|(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`)""",
    re.DOTALL,
)


def c_strings(source):
    for match in C_STRINGS.finditer(source):
        if match["string"] and " " in match[0]:
            yield match.start(), match[0].replace("\\n", "  ")


def python_strings(source):
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.STRING or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            yield starts[token.start[0] - 1] + token.start[1], token.string.replace("\\n", "  ")


def shell_strings(source):
    """Yields what is in quotes, outside of comments."""
    for match in re.finditer(r"""(?P<comment>(?:^|(?<=\s))\#[^\n]*)|"(?:\\.|[^"\\])*"|'[^']*'""", source):
        if not match["comment"]:
            yield match.start(), match[0]


def toml_texts(source):
    for match in re.finditer(r"(?:^[ \t]*\#[^\n]*\n?)+|[ \t]\#[ ][^\n]*", source, re.MULTILINE):
        text = IN_BACKQUOTES.sub(blank, match[0])
        yield match.start(), re.sub(r"^[ \t]*\#", spaces, text, flags=re.MULTILINE)


def whole_text(source):
    source = re.sub(r"\{\{.*?\}\}", blank, source, flags=re.DOTALL)
    source = IN_BACKQUOTES.sub(blank, source)
    # Values of labels, and other words that are names.
    source = re.sub(r"""\\?"[a-z_|]+\\?\"""", blank, source)
    yield 0, re.sub(r"^[ \t]*\#+", spaces, source, flags=re.MULTILINE)


TEXTS = {
    ".md": markdown_texts,
    ".rs": rust_strings,
    ".py": python_strings,
    ".sh": shell_strings,
    ".toml": toml_texts,
    ".yaml": whole_text,
    ".yml": whole_text,
    ".tpl": whole_text,
    ".txt": whole_text,
    ".json": whole_text,
} | dict.fromkeys([".go", ".java", ".js", ".mjs", ".ts"], c_strings)


def check_texts(source, kind, table):
    """Yields line, word and replacement."""
    found = set()
    for at, text in TEXTS[kind](source):
        for offset, word, instead in in_phrases(text, table):
            found.add((source.count("\n", 0, at + offset) + 1, word, instead))
    return sorted(found)


def check(source, kind, table):
    """Yields line, word and replacement. A name is reported once."""

    def line_of(offset):
        return source.count("\n", 0, offset) + 1

    reported = set()
    paragraph, end = "", 0
    found = []

    def flush():
        # Code in backquotes goes; then a phrase may span lines, and each character keeps its offset.
        text = IN_BACKQUOTES.sub(blank, paragraph)
        text = re.sub(r"\n[ \t]*(?://[/!]?|\#|\*(?!/))", spaces, text)
        for offset, word, instead in in_phrases(text, table):
            found.append((line_of(end - len(paragraph) + offset), word, instead))

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
    expect(samples, check, table)


def self_test_of_texts(table):
    markdown = """Told `whoever` [beside](anew.md) <!-- mended -->, `need` not <a id="who"></a>
```
told
```
A thing that need
not [be told][anew]. https://told.example/anew

[anew]: told.html
The operator need

not do anything. | in vain |
"""
    rust = 'let nobody = "nobody \\n{who}"; // told\nerr!("need \\\n  not `told`"); r#"in\n vain"#'
    samples = [
        (".md", markdown, [(1, "Told"), (1, "beside"), (5, "need not"), (6, "anew"), (6, "told"), (11, "in vain")]),
        (".rs", rust, [(1, "nobody"), (2, "need not"), (3, "in vain")]),
        (".toml", 'told = "told" # told\n# need\n# not\n', [(1, "told"), (2, "need not")]),
        (".yaml", 'key: told # {{ told }} x="told"\n# need\n# not\n', [(1, "told"), (2, "need not")]),
        (".sh", "# told\ntold=1\nsay 'told' \"need not\"\n", [(3, "need not"), (3, "told")]),
        (".go", "told := 'a' // told\nsay(\"told \", `is anew`, `told`)", [(2, "anew"), (2, "told")]),
        (".py", "told = 'told' # told\n", [(1, "told")]),
    ]
    expect(samples, check_texts, table)


def expect(samples, checker, table):
    for kind, source, expected in samples:
        found = [(line, word) for line, word, _ in checker(source, kind, table)]
        if found != expected:
            sys.exit(f"words.py: the self-test of {kind} failed:\n  expected {expected}\n  found    {found}")


def files_below(path, kinds):
    if path.is_file():
        return [path]
    below = (file for file in path.rglob("*") if file.suffix in kinds and file.is_file())
    ours = (file for file in below if not FOREIGN.intersection(file.relative_to(path).parts))
    return sorted(file for file in ours if kinds is TOKENS or not TEST.search(str(file.relative_to(path))))


def main(arguments):
    rows = TABLE.read_text()
    if arguments == ["--self-test"]:
        self_test(Table(rows))
        return self_test_of_texts(Table(rows, texts=True))
    texts = arguments[:1] == ["--texts"]
    kinds, checker, table = (TEXTS, check_texts, Table(rows, True)) if texts else (TOKENS, check, Table(rows))
    count = 0
    for path in arguments[texts:]:
        files = files_below(Path(path), kinds)
        if not files:
            sys.exit(f"words.py: {path} has no file to check")
        for file in files:
            for line, word, instead in checker(file.read_text(), file.suffix, table):
                print(f"{file}:{line}: {word} -> {instead}")
                count += 1
    if count:
        sys.exit(f"words.py: {count} words to replace")


if __name__ == "__main__":
    main(sys.argv[1:])
