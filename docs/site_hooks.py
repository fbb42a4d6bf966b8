"""What the site has besides the documents of docs/: API pages, and files of the repository.

The API pages are one per public package, every public name from its docstring; nothing is written
into the tree. A link out of docs/, which is right in the repository, leads to a copy in the site.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
# Repository file -> page of the site.
COPIES = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
COPIES |= {f"examples/notebooks/{path.name}": f"gallery/{path.stem}.md" for path in NOTEBOOKS}
# The two functions that people call first, and the packages that hold them.
FUNCTIONS = {"audit": "sfumato.auditing", "evaluate": "sfumato.trained"}
_LINK = re.compile(r"\]\((?!https?:)([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """The API comes last in the navigation, whichever packages there are."""
    names = [*(f"sfumato.{name}" for name in FUNCTIONS), *public_names()]
    config.nav.append({"API": [f"api/{name}.md" for name in names]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages, and copies of what the documents link to outside of docs/."""
    for source, page in COPIES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        text = notebook_page(text) if source.endswith(".ipynb") else from_root(text)
        files.append(File.generated(config, page, content=text))
    docs = ROOT / "docs"
    linked = {
        target
        for path in docs.rglob("*.md")
        for target in linked_files(path.read_text("utf-8"), path.relative_to(docs).as_posix())
    }
    for target in sorted(linked - set(COPIES)):
        content = (ROOT / target).read_text(encoding="utf-8")
        files.append(File.generated(config, copy_of(target), content=content))
    for name, module in FUNCTIONS.items():
        page = f"# sfumato.{name}\n\n::: {defining_module(module, name)}.{name}\n"
        files.append(File.generated(config, f"api/sfumato.{name}.md", content=page))
    for package, names in public_names().items():
        page = api_page(package, names)
        files.append(File.generated(config, f"api/{package}.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links out of docs/ into links to the copies."""
    if not page.file.src_uri.startswith("api/"):
        markdown = _LINK.sub(lambda found: _inside(found, page.file.src_uri), markdown)
    return markdown


def notebook_page(text: str) -> str:
    """A notebook as a page: its text, its code, and what each cell printed."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            parts.append(f"```text\n{''.join(output['text'])}```")
    return "\n\n".join(parts) + "\n"


def from_root(text: str) -> str:
    """A page of the repository's root, as if it stood in docs/."""
    return _LINK.sub(lambda found: f"]({_moved(found[1])}{found[2] or ''})", text)


def _moved(link: str) -> str:
    return link.removeprefix("docs/") if link.startswith("docs/") else f"../{link}"


def _inside(found: re.Match[str], page: str) -> str:
    outside = _outside(found[1], page)
    if outside is None:
        return found[0]
    link = posixpath.relpath(copy_of(outside), posixpath.dirname(page) or ".")
    return f"]({link}{found[2] or ''})"


def _outside(link: str, page: str) -> str | None:
    """The file of the repository that a link of a page leads to, or None inside of docs/."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    return path[3:] if path.startswith("../") else None


def linked_files(text: str, page: str) -> list[str]:
    """What a document of docs/ links to outside of it, from the repository's root."""
    targets = [_outside(link, page) for link, _ in _LINK.findall(text)]
    return [target for target in targets if target is not None]


def copy_of(target: str) -> str:
    """Where the site has a file of the repository: as a page, or as text that a browser shows."""
    return COPIES.get(target, f"repository/{target}.txt")


def api_page(package: str, names: list[str]) -> str:
    """Every public name of a package: functions and classes by docstring, the rest as a list.

    What lives in another public package is documented there, and here is a link.
    """
    summary = (ast.get_docstring(parsed(f"sfumato.{package}")) or "").partition("\n")[0]
    entries, links, constants = [], [], []
    for name in names:
        defined_in = defining_module(f"sfumato.{package}", name)
        if defined_in is None:
            constants.append(f"- `{name}`")
            continue
        home = home_of(defined_in, name, package)
        if home == package:
            entries.append(f"::: {defined_in}.{name}")
        else:
            links.append(f"- [`{name}`]({home}.md), of `sfumato.{home}`")
    parts = [f"# sfumato.{package}", summary, *entries]
    parts += ["## From other packages", "\n".join(links)] if links else []
    parts += ["## Types and constants", "\n".join(constants)] if constants else []
    return "\n\n".join(parts)


def home_of(defined_in: str, name: str, package: str) -> str:
    """The public package that a name is documented in: where it is defined, else the first."""
    surface = public_names()
    own = defined_in.split(".")[1:2]
    homes = [each for each in (*own, *surface) if name in surface.get(each, [])]
    return next((each for each in homes if each != "functional"), package)


def defining_module(module: str, name: str) -> str | None:
    """Return the module whose source defines a documented function or class, or None.

    Sources are read and nothing is imported, so the site needs no library that we integrate with.
    """
    if not module.startswith("sfumato"):
        return None
    tree = parsed(module)
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return module if ast.get_docstring(node) else None
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    for node in (each for each in imports if each.module != module):  # else it is a submodule
        original = {alias.asname or alias.name: alias.name for alias in node.names}
        source = original.get(name, name if "*" in original else None)
        found = defining_module(str(node.module), source) if source else None
        if found:
            return found
    return None


@cache
def parsed(module: str) -> ast.Module:
    """The syntax tree of a module of ours."""
    path = ROOT.joinpath("src", *module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def public_names() -> dict[str, list[str]]:
    """Package -> its public names, as tests/api_surface.json has them."""
    names: dict[str, list[str]] = json.loads(
        (ROOT / "tests" / "api_surface.json").read_text(encoding="utf-8")
    )
    return names
