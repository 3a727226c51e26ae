#!/usr/bin/env python3
"""Preprocessor of mdBook: a link out of docs/ (`../fixtures/clusters`) becomes a link into the repository.

The repository's address is `repository` in Cargo.toml, or REPOSITORY of the environment. Without one the link becomes the path as
code, for the site has no such file.
"""

import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[([^\]]*)\]\(\.\./([^)]*)\)")


def repository():
    named = re.search(r'^repository = "([^"]+)"', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)
    return os.environ.get("REPOSITORY") or (named and named[1])


def rewritten(text, address):
    def target(found):
        label, path = found.groups()
        if address:
            return f"[{label}]({address}/blob/HEAD/{path})"
        return label if label.strip("`") == path else f"{label} (`{path}`)"

    return LINK.sub(target, text)


def walk(items, address):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            chapter["content"] = rewritten(chapter["content"], address)
            walk(chapter["sub_items"], address)


def main():
    if len(sys.argv) > 1 and sys.argv[1] == "supports":
        return
    _, book = json.load(sys.stdin)
    walk(book.get("items", book.get("sections", [])), repository())
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
