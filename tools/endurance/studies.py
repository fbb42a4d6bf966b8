"""Studies drawn over the whole schema: what `check` accepts runs, what it refuses says why.

A small study that works gets one to three changes, each a key of the schema of study files with a
value that the schema allows, or one just beside it. New keys and parts are drawn without being
told, since the schema is made from the code that checks.
"""

from __future__ import annotations

import copy
import json
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from sfumato.engine import ConfigError, run
from sfumato.engine.preflight import check_runs
from sfumato.engine.training.loop import DivergenceError
from sfumato.study import load_study, plan
from sfumato.study.config import select
from sfumato.study.jobs import group_jobs
from sfumato.study.schema import study_schema
from tools.endurance.runners import RECIPES, scratch
from tools.endurance.trials import Drawn

Json = dict[str, Any]
# Other machines, downloads and files are not drawn, nor what only makes a run longer.
LEFT_OUT = {"devices", "num_nodes", "strategy", "accelerator", "pretrained", "weights", "modules"}
LEFT_OUT |= {"root", "path", "download", "own", "classifier", "also", "task", "weights_digest"}
SMALL: Json = {"epochs": 1, "batch_size": 4, "resamples": 3, "train": 9, "validation": 5, "test": 6}
SMALL |= {"width": 4, "depth": 8, "size": 16}
SOURCES = {"classify": "scenes", "segment": "scene_streams", "detect": "scene_objects"}
OFTEN = ("augment", "evaluate", "loss", "predict", "train")  # which have most to say
NUMBERS = (0.0, 0.1, 0.5, 1.0, 2.5)
WORDS = ("", "a", "all", "1")
RAW = ("RuntimeError", "KeyError", "IndexError", "AttributeError", "ZeroDivisionError")


@dataclass(frozen=True)
class StudyCase:
    """A study as text, so that a case shows itself as a user would write it."""

    task: str
    recipe: str

    @property
    def content(self) -> Json:
        return {"name": "drawn", "recipe": json.loads(self.recipe), "methods": {"only": {}}}


@cache
def _schema() -> Json:
    return study_schema()


def draw(number: int) -> StudyCase:
    """A case from a number, the same one each time."""
    dice = random.Random(number)
    task = dice.choice(["classify"] * 5 + ["segment"] * 2 + ["detect"])
    recipe = _small(copy.deepcopy(RECIPES[task]))
    sections = _schema()["$defs"]["Changes"]["properties"]
    for _ in range(dice.choice([1, 1, 2, 3])):
        name = dice.choice([*sorted(set(sections) - LEFT_OUT), *OFTEN])
        value = _drawn(sections[name], dice)
        if name == "data":
            value = {**recipe["data"], **_options(sections[name], SOURCES[task], dice)}
        is_part_of = isinstance(value, dict) and isinstance(recipe.get(name), dict)
        if is_part_of and "name" not in value:
            value = {**recipe[name], **value}
        recipe[name] = value
    return StudyCase(task, json.dumps(recipe))


def _small(section: Json) -> Json:
    """The same recipe with as little work as possible."""
    for key, value in section.items():
        if isinstance(value, dict):
            section[key] = _small(value)
        elif key in SMALL and isinstance(value, int):
            section[key] = min(SMALL[key], value)
    return section


def _options(schema: Json, name: str, dice: random.Random) -> Json:
    """Options of one part, of all that a key may name."""
    forms = [each for each in _forms(schema) if _name_of(each) == name]
    return {} if not forms else {**_drawn(forms[0], dice), "name": name}


def _forms(schema: Json) -> list[Json]:
    return schema.get("anyOf", [schema])


def _name_of(form: Json) -> Any:
    return form.get("properties", {}).get("name", {}).get("const")


def _drawn(schema: Json, dice: random.Random) -> Any:
    """A value of this schema, or now and then one beside it."""
    if "$ref" in schema:
        return _drawn(_schema()["$defs"][schema["$ref"].rpartition("/")[2]], dice)
    if "anyOf" in schema:
        own = [each for each in schema["anyOf"] if "pattern" not in each]  # import paths
        return _drawn(dice.choice(own or schema["anyOf"]), dice)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return dice.choice(schema["enum"])
    kind = schema.get("type")
    if kind == "object":
        return _object(schema, dice)
    if kind == "array":
        return [_drawn(schema.get("items", {}), dice) for _ in range(dice.choice([0, 1, 1, 2, 3]))]
    if kind == "boolean":
        return dice.random() < 0.5
    if kind in ("integer", "number"):
        return _number(schema, kind, dice)
    return None if kind == "null" else dice.choice(WORDS)


def _object(schema: Json, dice: random.Random) -> Json:
    known = schema.get("properties", {})
    needed = set(schema.get("required", ()))
    free = sorted(set(known) - needed - LEFT_OUT)
    chosen = dice.sample(free, min(len(free), dice.choice([0, 1, 1, 2, 3])))
    found = {name: _drawn(known[name], dice) for name in (*sorted(needed), *chosen)}
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        found["any"] = _drawn(more, dice)
    if "width" in known and "width" not in needed:  # of a network
        found.setdefault("width", SMALL["width"])
    if _name_of(schema) == "resnet":
        found.setdefault("depth", SMALL["depth"])
    return found


def _number(schema: Json, kind: str, dice: random.Random) -> float:
    if dice.random() < 0.05:
        return -1
    least = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    most = schema.get("maximum", schema.get("exclusiveMaximum", 40))
    near = [least, least + 1, least + 2, schema.get("default"), most]
    values = (*near, 3, 4) if kind == "integer" else (*near, *NUMBERS)
    return dice.choice([each for each in values if each is not None and least <= each <= most])


def smaller(case: StudyCase) -> Iterator[StudyCase]:
    """The same study without one of its keys, or with the recipe's own value in its place."""
    recipe, plain = json.loads(case.recipe), _small(copy.deepcopy(RECIPES[case.task]))
    for path in _paths(recipe):
        simpler = copy.deepcopy(recipe)
        place, usual = simpler, plain
        for key in path[:-1]:
            place = place[key]
            usual = usual.get(key, {}) if isinstance(usual, dict) else {}
        if isinstance(usual, dict) and path[-1] in usual:
            if place[path[-1]] == usual[path[-1]]:
                continue
            place[path[-1]] = usual[path[-1]]
        else:
            del place[path[-1]]
        yield StudyCase(case.task, json.dumps(simpler))


def _paths(content: Json, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in content.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from _paths(value, (*before, key))


def check(case: StudyCase) -> str:
    """Raise where an accepted study does not run, or a refused one does not say why."""
    with scratch() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = folder / "drawn.yaml"
        path.write_text(yaml.safe_dump(case.content, sort_keys=False))
        try:
            study = load_study(path)
            jobs = group_jobs(select(study, plan(study), ()), folder / "runs")
            configs = [each.config for job in jobs for each in job.runs]
            check_runs(configs, devices=True)
        except ConfigError as refusal:
            _check_words(str(refusal))
            return "refused"
        try:
            found = [run(config, folder / "runs", show=False).metrics() for config in configs]
        except DivergenceError:  # which no check can foresee
            return "diverged"
    if not all(found):
        raise AssertionError("a run ended without a number")
    return "ran"


def _check_words(message: str) -> None:
    """Raise unless a refusal is in our words: an error of a library names no remedy."""
    raw = [word for word in RAW if f"{word}:" in message]
    if raw or len(message) < 30:
        raise AssertionError(f"refused without saying what to do: {message}")


STUDIES = Drawn("studies", draw, check, smaller, lambda case: case.task)
