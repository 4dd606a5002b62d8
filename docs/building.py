"""What `make docs` adds to mkdocs: files outside docs/, prompts of Python, and our docstrings.

mkdocs loads this file as a hook, griffe as an extension.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
#: Links that leave docs/. The files go into the site as they are, but for these, which have pages.
OUT = re.compile(r"(?<=\]\()((?:\.\./)+[\w./-]+)(?=[)#])")
PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}


def on_config(config: Any) -> Any:
    if Path(config.site_dir) == ROOT / "site":  # as in mkdocs.yml, and no other was asked for
        config.site_dir = str(DOCS / "site")  # exclude_docs has it, so it cannot nest
    return config


def on_files(files: Files, config: Any) -> Files:
    for page in files.documentation_pages():
        for link in OUT.findall(page.content_string):
            name = outside(page, link)
            if name and files.get_file_from_path(name) is None:
                files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    def inside(match: re.Match) -> str:
        name = outside(page.file, match[1])
        return "../" * page.file.src_uri.count("/") + name if name else match[1]

    markdown = OUT.sub(inside, markdown)
    return re.sub(r"^( *)```python\n(?= *>>> )", r"\1```pycon\n", markdown, flags=re.M)


def outside(page: File, link: str) -> str | None:
    """The place in the site of a file that lies outside docs/, or None for any other link."""
    target = (DOCS / page.src_uri).parent.joinpath(link).resolve()
    if not target.is_file() or ROOT not in target.parents or DOCS in target.parents:
        return None
    name = target.relative_to(ROOT).as_posix()
    return PAGES.get(name, name)


class HouseStyle(griffe.Extension):
    """Reads `Example:`, Sphinx roles, `#:` comments and settings, which Google's style lacks."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.name == "__init_subclass__":
            obj.docstring = None  # how the contract is kept is not part of it
        if obj.is_class and (rows := fields(obj)):
            if obj.docstring is None:
                obj.docstring = griffe.Docstring("", parent=obj, parser="google")
            start, example, end = obj.docstring.value.partition("\nExample:\n")
            table = "".join(f"    {name}: {note}\n" for name, note in rows.items())
            obj.docstring.value = f"{start.rstrip()}\n\nAttributes:\n{table}{example}{end}"
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)


def fields(of: griffe.Object) -> dict[str, str]:
    """What the attributes of a class mean: their `#:` comments, or descriptions of settings.

    Of a NamedTuple all are listed, with their defaults.
    """
    found = {}
    tuple_ = any(str(base).endswith("NamedTuple") for base in of.bases)
    for name, member in of.members.items():
        if member.is_alias or not member.is_attribute or name.startswith("_"):
            continue
        comment = re.search(r"#: (.+)", " ".join(member.lines))
        if comment:
            found[name] = comment[1]
        elif str(member.value).startswith("Field("):
            call = ast.parse(str(member.value), mode="eval").body
            notes = [k.value for k in call.keywords if k.arg == "description"]
            if notes:
                default = f"; default `{ast.unparse(call.args[0])}`" if call.args else ""
                found[name] = words(notes[0]) + default
        elif tuple_ and member.annotation is not None:
            found[name] = "–" if member.value is None else f"default `{member.value}`"
    return found


def words(node: ast.expr) -> str:
    """The text of a string, with … for what is put in when it runs."""
    if isinstance(node, ast.JoinedStr):
        return "".join(words(part) for part in node.values)
    if isinstance(node, ast.BinOp):
        return words(node.left) + words(node.right)
    return node.value if isinstance(node, ast.Constant) else "…"


def readable(text: str) -> str:
    """A docstring of ours in Google's words and Markdown.

    Example:
        >>> readable("See :func:`linearizer.solvers.collapse`.")
        'See `collapse`.'
    """
    text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.M)
    return re.sub(r":(?:class|func|meth|data|mod|attr):`[~.]?(?:\w+\.)*(\w+)`", r"`\1`", text)
