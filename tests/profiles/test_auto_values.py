"""`"auto"` as a value: what it stands for, whoever says it, and who refuses it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotwise.errors import SlotwiseError
from slotwise.profiles import render
from slotwise.profiles.auto_values import AUTO_BATCH, AUTO_DELAY_MS, CHOSEN_BY
from slotwise.profiles.profile import Profile, load_profile

VALUES = {"batch_size": 4, "max_batch_delay_ms": 7, "initial_workers": 2, "threads": 1}
PLACES = st.dictionaries(st.sampled_from(sorted(VALUES)), st.booleans())  # a key there: True where it is "auto"
OTHERS = ("torchserve", "mms", "ray", "triton")


def said(place: dict[str, bool]) -> dict[str, object]:
    return {key: "auto" if auto else VALUES[key] for key, auto in place.items()}


def test_every_key_alone_stands_for_what_was_there_before() -> None:
    batch, delay, workers, threads = (load_profile("cpu", {key: "auto"}, {}, cores=8) for key in VALUES)
    assert (batch.batch_size, batch.linger, batch.max_batch_delay_ms, batch.workers_by_load) == (AUTO_BATCH, "auto", 2, "off")
    assert (delay.batch_size, delay.linger, delay.max_batch_delay_ms) == (16, "auto", AUTO_DELAY_MS)
    assert (workers.initial_workers, workers.workers_by_load, workers.most_workers(8), workers.linger) == (1, "auto", 8, "free")
    assert (threads.threads, threads.linger, threads.workers_by_load) == (0, "free", "off")
    least = load_profile("cpu", {"initial_workers": "auto", "min_workers": "3", "max_workers": "5"}, {}, cores=8)
    assert (least.initial_workers, least.min_workers, least.most_workers(8)) == (3, 3, 5)


@given(PLACES, PLACES, PLACES)
def test_the_last_place_that_names_a_key_says_whether_the_host_chooses_it(
    variables: dict[str, bool], wishes: dict[str, bool], options: dict[str, bool]
) -> None:
    names = {"batch_size": "BATCH_SIZE", "initial_workers": "WORKERS", "max_batch_delay_ms": "MAX_BATCH_DELAY"}
    environ = {names[key]: str(value) for key, value in said(variables).items() if key in names}
    profile = load_profile("cpu", {key: str(value) for key, value in said(options).items()}, environ, cores=8)
    model = profile.for_model(said(wishes))
    last = {**wishes, **{key: auto for key, auto in variables.items() if key in names}, **options}
    assert model.chosen == {key for key, auto in last.items() if auto and key in CHOSEN_BY}
    assert all(getattr(model, key) == VALUES[key] for key, auto in last.items() if not auto)
    assert all(getattr(model, CHOSEN_BY[key]) == "auto" for key in model.chosen)
    again = Profile.model_validate_json(model.model_dump_json())  # as a server keeps it
    assert again.model_dump() == model.model_dump()
    assert model.on("slotwise") is model
    for kind in OTHERS:
        if model.chosen:
            with pytest.raises(SlotwiseError, match=f'{min(model.chosen)} = "auto": {kind} does not choose it'):
                model.on(kind)
        else:
            model.on(kind)


def test_advise_stays_and_what_chooses_nothing_is_refused() -> None:
    advised = load_profile("cpu", {"batch_size": "auto", "linger": "advise"}, {}, cores=8)
    assert advised.for_model({"max_batch_delay_ms": "auto"}).linger == "advise"
    assert load_profile("cpu", {"linger": "exact"}, {}, cores=8).but({"batch_size": "auto"}, "here").linger == "auto"
    for changes in ({"batch_size": "auto", "linger": "free"}, {"initial_workers": "auto", "workers_by_load": "off"}):
        with pytest.raises(SlotwiseError, match=r"--set: (batch_size|initial_workers) is \"auto\", but .*chooses nothing"):
            load_profile("cpu", changes, {}, cores=8)
    with pytest.raises(SlotwiseError, match="min_workers: must be a valid integer, not 'auto'"):
        load_profile("cpu", {"min_workers": "auto"}, {}, cores=8)


def test_no_file_for_torchserve_says_anything_of_what_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slotwise.toml").touch()
    for folder in ("profiles", "models/own", "models/any"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "profiles" / "mine.toml").write_text('[registration]\nbatch_size = "auto"\n', "utf-8")
    for name, wish in (("own", '"auto"'), ("any", "3")):
        text = f'name = "{name}"\nhandler = "h.py"\n[profiles.ei]\nbatch_size = {wish}\n'
        (tmp_path / "models" / name / "model.toml").write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    files = render.committed_files()
    assert 'batch_size = "auto"' in files["profiles/mine.properties"]
    assert "models" not in files["profiles/mine.properties"].splitlines()[-1]
    ei = files["profiles/ei.properties"]
    assert "--server slotwise` alone: own\n" in ei
    assert '"any": {' in ei
    assert '"own": {' not in ei
    with pytest.raises(SlotwiseError, match='batch_size = "auto": torchserve does not choose it'):
        render.render_properties(load_profile("mine", environ={}, cores=8))
