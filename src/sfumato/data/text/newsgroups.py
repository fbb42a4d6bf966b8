"""20 Newsgroups, by date: messages in twenty folders for training and twenty for testing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from sfumato._core.files import read_bytes
from sfumato.data.archives import is_archive, read_members
from sfumato.data.dataset import DataSplits
from sfumato.data.index import folders_in
from sfumato.data.splits import Shared, source
from sfumato.data.text.documents import OPTIONS, Documents, decode_text, token_splits

Extra = Literal["headers", "footers", "quotes"]
_MOST_BYTES = 64 * 2**20  # of a message
_TRAIN, _TEST = "20news-bydate-train", "20news-bydate-test"
# How a reply names whom it quotes, and how each quoted line begins.
_QUOTE = re.compile(
    r"(?:writes in|writes:|wrote:|says:|said:)|^(?:In article|Quoted from|[>|])", re.MULTILINE
)
_RULE = re.compile(r"-*")


@source(*OPTIONS, length=1000)
def load_newsgroups(
    shared: Shared,
    *,
    root: str | Path,
    split: Literal["by_date", "random"] = "by_date",
    remove: Sequence[Extra] = (),
    validation: float | int = 900,
    test: float | int = 0.2,
) -> DataSplits:
    """Splits of 20 Newsgroups as its "by-date" archive holds them (11,314 and 7,532 messages).

    Headers name the group's readers and hosts, footers are signatures, and quotes repeat other
    messages: a network that reads them looks better than it is.

    Args:
        root: the folder that holds `20news-bydate-train`, or a tar archive of it.
        split: `by_date` tests on the later messages, as the archive has them; `random` cuts all
            messages anew, as the MbLS paper does, where a test message may answer a training one.
        remove: any of `headers`, `footers` and `quotes`.
        validation: share or count of training samples, stratified; the paper's 900.
        test: share or count of all messages, for `split: random`.
    """
    path = Path(root).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"{path.absolute()}: no such folder or archive; say where it is with root:"
        )
    found = _archived(path) if is_archive(path) else _filed(path)
    classes = sorted({message.group for message in found[_TRAIN]})
    train, later = (_documents(found[part], classes, remove) for part in (_TRAIN, _TEST))
    return token_splits(
        train if split == "by_date" else train + later,
        classes,
        test=later if split == "by_date" else test,
        validation=validation,
        shared=shared,
    )


class _Message(NamedTuple):
    group: str
    number: str
    where: str
    content: bytes


def _archived(path: Path) -> dict[str, list[_Message]]:
    # Straight from the archive: unpacking would take much longer.
    found: dict[str, list[_Message]] = {_TRAIN: [], _TEST: []}
    for name, content in read_members(path, lambda name: _place(name)[0] in found, _MOST_BYTES):
        part, group, number = _place(name)
        found[part].append(_Message(group, number, f"{path}: {name}", content))
    for part, messages in found.items():
        if not messages:
            raise ValueError(f"{path}: has no {part} with groups of messages in it")
    return found


def _place(name: str) -> tuple[str, str, str]:
    *_, part, group, number = ("", "", "", *PurePosixPath(name).parts)
    return part, group, number


def _filed(root: Path) -> dict[str, list[_Message]]:
    return {
        part: [
            _Message(folder.name, path.name, str(path), read_bytes(path, most=_MOST_BYTES))
            for folder in folders_in(root / part)
            for path in folder.iterdir()
        ]
        for part in (_TRAIN, _TEST)
    }


def _documents(
    messages: Iterable[_Message], classes: Sequence[str], remove: Sequence[Extra]
) -> Documents:
    numbers = {name: number for number, name in enumerate(classes)}
    texts: list[str] = []
    labels: list[int] = []
    for group, _, where, content in sorted(messages):
        if group not in numbers:
            raise ValueError(f"{where}: {_TRAIN} has no group {group!r}")
        texts.append(strip_message(decode_text(content, "latin-1", where), remove))
        labels.append(numbers[group])
    return Documents(texts, labels)


def strip_message(text: str, remove: Sequence[Extra]) -> str:
    """A message without some of its parts.

    Example:
        >>> message = "From: a@b\\n\\nIn article 1 b writes:\\n> Why?\\nBecause.\\n\\n--\\nMe"
        >>> strip_message(message, ["headers", "footers", "quotes"])
        'Because.'
    """
    for extra, strip in _STRIP.items():
        if extra in remove:
            text = strip(text)
    return text


def _without_footers(text: str) -> str:
    """All before the last line that is blank or a rule, unless that would be everything."""
    lines = text.strip().split("\n")
    for number in range(len(lines) - 1, 0, -1):
        if _RULE.fullmatch(lines[number].strip()):
            return "\n".join(lines[:number]).rstrip()
    return text


# In this order: a quote may follow the header at once, and a footer is what is last.
_STRIP: dict[Extra, Callable[[str], str]] = {
    "headers": lambda text: text.partition("\n\n")[2],
    "footers": _without_footers,
    "quotes": lambda text: "\n".join(line for line in text.split("\n") if not _QUOTE.search(line)),
}
