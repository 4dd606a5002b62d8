"""What the documents say is so."""

import doctest
import importlib
import inspect
import os
import re
import subprocess
import sys
import urllib.parse
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_the_documents_quote_the_benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import readme_table

    hint = "run python benchmarks/readme_table.py"
    for page, parts in {
        "benchmarks.md": (readme_table.table,),
        "peers.md": (readme_table.peers_table,),
        "training.md": (
            readme_table.loop_table,
            readme_table.kept_line,
            readme_table.small_table,
        ),
        "flow.md": (readme_table.collapse_table,),
        "studio.md": (readme_table.studio_table,),
    }.items():
        text = (ROOT / "docs" / page).read_text()
        assert all(part() in text for part in parts), f"{page}: {hint}"
    rows = [line for line in (ROOT / "README.md").read_text().splitlines() if line[:3] == "| ["]
    for app, number in readme_table.numbers().items():
        (row,) = (row for row in rows if row.startswith(f"| [{app}]"))
        assert f"**{number}**" in row, (app, number)
    for name in ("common", "docs_tables", "readme_table"):
        sys.modules.pop(name, None)


def test_the_documents_quote_the_experiments():
    from paper.experiment import FOLDER
    from paper.pages import EVERY, make_page, read_folder

    hint = "run python -m paper tables"
    for experiment in EVERY.values():
        for (page, mark), make in experiment.tables.items():
            text = (ROOT / "docs" / page).read_text()
            assert f"<!-- {mark} -->\n{make()}<!-- /{mark} -->\n" in text, f"{page}: {hint}"
    assert make_page(read_folder(FOLDER)) == (ROOT / "docs" / "results.md").read_text(), hint


PAGES = sorted(p for p in (ROOT / "docs").rglob("*.md") if "site" not in p.parts)


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *PAGES], ids=lambda p: str(p.relative_to(ROOT))
)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(#[^)\s]*)?\)", page.read_text()):
        to = page.parent / target if target else page
        assert target.startswith("https://") or to.exists(), target
        if anchor and to.suffix == ".md" and to.exists():
            heads = re.findall(r"^#+ (.+)$", to.read_text(), re.M)
            assert anchor[1:] in {slugify(h, "-") for h in heads}, f"{target}{anchor}"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) < 900


def slugify(heading, separator):
    from markdown.extensions.toc import slugify

    return slugify(heading.replace("`", ""), separator)


def test_the_nav_lists_every_page():
    yaml = pytest.importorskip("yaml")

    def pages(entry):
        if isinstance(entry, str):
            return [entry]
        return [p for e in (entry.values() if isinstance(entry, dict) else entry) for p in pages(e)]

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(listed) == sorted(str(p.relative_to(ROOT / "docs")) for p in PAGES)


def test_tutorials_run_and_their_pictures_are_small():
    tutorials = sorted((ROOT / "docs" / "tutorials").glob("[0-9]*.md"))
    assert len(tutorials) == 6
    for page in tutorials:
        text = page.read_text()
        assert len(doctest.DocTestParser().get_examples(text)) > 15, page.name
        pictures = re.findall(r"\((\.\./images/tutorial-[^)]+)\)", text)
        assert pictures, page.name
        assert all((page.parent / p).stat().st_size < 200_000 for p in pictures)


class Requests(HTMLParser):
    """What a browser would fetch for a page, and where its links go."""

    def __init__(self, page):
        super().__init__()
        self.fetched, self.links, self.ids = [], [], set()
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids.add(values.get("id"))
        if tag == "a":
            self.links.append(values.get("href") or "")
        else:
            self.fetched += [values[k] for k in ("src", "href", "srcset") if values.get(k)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` does, in a folder of its own."""
    for needed in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(folder)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return {p.relative_to(folder): Requests(p) for p in sorted(folder.rglob("*.html"))}, folder


def test_no_page_of_the_site_asks_another_host(site):
    pages, folder = site
    assert len(pages) > len(PAGES)
    for name, page in pages.items():
        for address in page.fetched:
            assert not re.match(r"\w+:|//", address) or address.startswith("data:"), (name, address)
            assert name.name == "404.html" or (folder / name.parent / _path(address)).exists(), (
                name, address,
            )  # fmt: skip
        assert "mermaid" not in (folder / name).read_text(), name  # would be fetched from elsewhere
    for sheet in folder.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", sheet.read_text()), sheet


def test_links_of_the_site_lead_somewhere(site):
    pages, folder = site
    for name, page in pages.items():
        for link in page.links:
            if re.match(r"\w+:", link) or name.name == "404.html":
                continue
            to = Path(os.path.normpath(name.parent / _path(link))) if _path(link) else name
            assert (folder / to).exists(), (name, link)
            anchor = urllib.parse.unquote(link.partition("#")[2])
            if to in pages and anchor and not anchor.startswith("__"):
                assert anchor in pages[to].ids, (name, link)


def _path(link):
    return urllib.parse.unquote(re.split(r"[?#]", link)[0])


#: Modules whose public classes and functions are all in the reference.
CONTRACT = (
    "apps.base", "apps.registry", "apps.command", "apps.page", "data.kinds", "runs.store",
    "runs.plan", "runs.execute", "runs.evaluate", "runs.algebra", "training.checkpoint",
    "training.loop", "training.sources", "training.settings", "solvers", "apps.distill.use",
)  # fmt: skip


def test_every_public_name_has_a_place_in_the_reference(site):
    import linearizer as lz
    from linearizer.apps import registry

    ids = set().union(*(page.ids for name, page in site[0].items() if name.parts[0] == "api"))
    names = {f"linearizer.operators.{n}" for n in lz.operators.__all__ if n != "DENSE_LIMIT"}
    names |= {f"linearizer.bijections.{n}" for n in lz.bijections.__all__}
    names |= {f"linearizer.families.{n}" for n in lz.families.__all__}
    names |= {f"linearizer.{n}" for n in ("Space", "Linearizer", "Certificate")}
    for app in registry.BUILT_IN:
        names |= {f"linearizer.apps.{app}.model", f"linearizer.apps.{app}.model.Config"}
    for name in CONTRACT:
        module = importlib.import_module(f"linearizer.{name}")
        public = ((n, getattr(module, n)) for n in module.__all__)
        made = {n for n, v in public if inspect.isclass(v) or inspect.isfunction(v)}
        names |= {f"linearizer.{name}.{n}" for n in made}
    assert names <= ids, sorted(names - ids)
    text = "".join((site[1] / name).read_text() for name in site[0] if name.parts[0] == "api")
    for raw in (":class:", ":func:", "Example:", "<strong>Arguments"):
        assert raw not in text, raw  # docstrings that were not understood


def test_every_public_name_is_documented():
    import linearizer as lz

    nouns = (ROOT / "docs" / "nouns.md").read_text()
    for name in lz.operators.__all__:
        assert getattr(lz.operators, name).__doc__ and (name in nouns or name in {"SVD", "Eig"}), (
            name
        )
    for name in lz.bijections.__all__:
        assert getattr(lz.bijections, name).__doc__, name
    for method in (n for n in dir(lz.Linearizer) if n in {*vars(lz.Linearizer)} and n[0] != "_"):
        assert method == "forward" or f"f.{method}" in nouns, method
    for method in (n for n in vars(lz.Space) if n[0] != "_"):
        assert f"`{method}" in nouns or f"{method}" in {
            "shape", "dim", "coordinates", "points", "extra_repr",
            *re.findall(r"`(\w+)[`(]", nouns),
        }, method  # fmt: skip
