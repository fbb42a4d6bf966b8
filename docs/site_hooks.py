"""What the site has besides the documents of docs/: API pages, and files of the repository.

The API pages are one per public package, every public name from its docstring; nothing is written
into the tree. A link out of docs/, which is right in the repository, leads to a copy in the site.
"""

from __future__ import annotations

import importlib
import json
import re
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
_LINK = re.compile(r"\]\((?!https?:)([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """The API comes last in the navigation, whichever packages there are."""
    config.nav.append({"API": [f"api/{package}.md" for package in public_names()]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages, and copies of what the documents link to outside of docs/."""
    for source, page in COPIES.items():
        text = from_root((ROOT / source).read_text(encoding="utf-8"))
        files.append(File.generated(config, page, content=text))
    documents = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")]
    linked = {target for text in documents for target in linked_files(text)}
    for target in sorted(linked - set(COPIES)):
        content = (ROOT / target).read_text(encoding="utf-8")
        files.append(File.generated(config, copy_of(target), content=content))
    for package, names in public_names().items():
        page = api_page(package, names)
        files.append(File.generated(config, f"api/{package}.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links out of docs/ into links to the copies."""
    if not page.file.src_uri.startswith("api/"):
        markdown = _LINK.sub(_inside, markdown)
    return markdown


def from_root(text: str) -> str:
    """A page of the repository's root, as if it stood in docs/."""
    return _LINK.sub(lambda found: f"]({_moved(found[1])}{found[2] or ''})", text)


def _moved(link: str) -> str:
    return link.removeprefix("docs/") if link.startswith("docs/") else f"../{link}"


def _inside(found: re.Match[str]) -> str:
    target = found[1].removeprefix("../")
    return f"]({copy_of(target)}{found[2] or ''})" if target != found[1] else found[0]


def linked_files(text: str) -> list[str]:
    """What a document of docs/ links to outside of it, from the repository's root."""
    return [link[3:] for link, _ in _LINK.findall(text) if link.startswith("../")]


def copy_of(target: str) -> str:
    """Where the site has a file of the repository: as a page, or as text that a browser shows."""
    return COPIES.get(target, f"repository/{target}.txt")


def api_page(package: str, names: list[str]) -> str:
    """Every public name of a package: functions and classes by docstring, the rest as a list.

    What lives in another public package is documented there, and here is a link.
    """
    module = importlib.import_module(f"sfumato.{package}")
    summary = (module.__doc__ or "").strip().partition("\n")[0]
    entries, links, constants = [], [], []
    for name in names:
        value = getattr(module, name)
        home = home_of(value, name, package)
        if not is_documented(value):
            constants.append(f"- `{name}`")
        elif home == package:
            entries.append(f"::: {value.__module__}.{value.__qualname__}")
        else:
            links.append(f"- [`{name}`]({home}.md), of `sfumato.{home}`")
    parts = [f"# sfumato.{package}", summary, *entries]
    parts += ["## From other packages", "\n".join(links)] if links else []
    parts += ["## Types and constants", "\n".join(constants)] if constants else []
    return "\n\n".join(parts)


def home_of(value: Any, name: str, package: str) -> str:
    """The public package that a name is documented in: where it is defined, else the first."""
    surface = public_names()
    own = str(getattr(value, "__module__", "")).split(".")[1:2]
    homes = [each for each in (*own, *surface) if name in surface.get(each, [])]
    return next((each for each in homes if each != "functional"), package)


def is_documented(value: Any) -> bool:
    return hasattr(value, "__qualname__") and bool(value.__doc__)


def public_names() -> dict[str, list[str]]:
    """Package -> its public names, as tests/api_surface.json has them."""
    names: dict[str, list[str]] = json.loads(
        (ROOT / "tests" / "api_surface.json").read_text(encoding="utf-8")
    )
    return names
