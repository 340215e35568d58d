"""Completes the book that mdBook has built from docs/, and checks it.

    book.py BOOK REPOSITORY_URL

On GitHub the pages link to files outside of docs/ (`../helm/postrider`). The book does not contain these files, so its
links to them become links to the repository. Then each link within the book must lead to a page and an anchor.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

OUTSIDE = re.compile(r'(?<=href=")\.\./([^"#]*)(#[^"]*)?(?=")')
# mdBook makes index.html of README.md, and leaves links to it as they are.
INDEX = re.compile(r'(?<=href=")README\.html(?=["#])')


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.anchors, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name"):
                self.anchors.add(value)
            elif name in ("href", "src") and value and "://" not in value and not value.startswith("mailto:"):
                self.links.append(value)


def main(book, repository):
    book = Path(book)

    def in_repository(link):
        path = re.sub(r"\.html$", ".md", link[1])
        return f"{repository}/blob/main/{path}{link[2] or ''}"

    pages = {}
    for file in sorted(book.glob("*.html")):
        text = INDEX.sub("index.html", OUTSIDE.sub(in_repository, file.read_text()))
        file.write_text(text)
        pages[file.name] = Page(text)
    problems = []
    for name, page in pages.items():
        for link in page.links:
            path, anchor = urldefrag(link)
            target = unquote(path) or name
            if name == "404.html":  # its links are absolute
                continue
            if not (book / target).exists():
                problems.append(f"{name}: the link {link}: the book has no {target}")
            elif anchor and target in pages and unquote(anchor) not in pages[target].anchors:
                problems.append(f"{name}: the link {link}: {target} has no anchor {anchor}")
    if problems:
        sys.exit("\n".join(problems))
    if len(pages) < 20:
        sys.exit(f"book.py: only {len(pages)} pages in {book}")


if __name__ == "__main__":
    main(*sys.argv[1:])
