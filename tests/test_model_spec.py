"""model.toml: what is right is read, and what is wrong is one line naming the file and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotwise.errors import SlotwiseError
from slotwise.files import project
from slotwise.model_spec import load_spec

MINIMAL = 'name = "m"\nhandler = "image_classifier"\n'


def written(folder: Path, text: str) -> Path:
    """A folder with that model.toml."""
    (folder / "model.toml").write_text(text)
    return folder


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])  # Windows' editors write a mark before the first label
def test_a_whole_description_is_read(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "labels.txt").write_text("cat\n\n dog \n", encoding)
    spec = load_spec(
        written(
            tmp_path,
            MINIMAL
            + """labels = "labels.txt"
                files = ["words"]
                [input]
                shape = [3, 224, 224]
                resize = 256
                mean = [0.5, 0.5, 0.5]
                std = [1, 1, 1]
                [weights]
                state_dict = "w.pt"
                module = "net.py:Net"
                onnx = "w.onnx"
                openvino_int8 = "int8/w.xml"
                [options]
                anything = {goes = "here"}
                [profiles.cuda]
                batch_size = 32
            """,
        )
    )
    assert spec.labels == ["cat", "dog"]
    assert spec.content() == ["w.onnx", "w.pt", "net.py", "int8/w.xml", "int8/w.bin", "words"]
    assert (spec.version, spec.top_k, spec.input.shape) == ("1.0", 5, [3, 224, 224])
    assert spec.profiles == {"cuda": {"batch_size": 32}}


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('handler = "h"', "the key 'name' is missing", ""),
        (MINIMAL + "lables = []", "unknown key 'lables'", "did you mean 'labels'?"),
        (MINIMAL + "[input]\nfoo = 1", "unknown key 'input.foo'", "known keys: columns, dtype, ink, "),
        (MINIMAL + '[[stages]]\nname = "a"\nmodel = "b"\nnam = "c"', "unknown key 'stages.0.nam'", "did you mean 'name'?"),
        (MINIMAL + "[input]\nshape = [0, 2]", "input: shape must be of positive sizes", ""),
        (MINIMAL + "[input]\nshape = [3, 2, 2]\nmean = [1]", "input: mean has 1 numbers for 3 channels", ""),
        (MINIMAL + "[input]\nstd = [nan]", "input.std.0: Input should be a finite number", ""),
        (MINIMAL + "[input]\nmean = [inf]", "input.mean.0: Input should be a finite number", ""),
        (MINIMAL + "[input]\nstd = [0]", "input: std must be positive", ""),
        (MINIMAL + '[input]\nshape = "big"', "input.shape: ", ""),
        (MINIMAL + "top_k = 0", "top_k: Input should be greater than or equal to 1", ""),
        (MINIMAL + "version = 1.0", "version: Input should be a valid string", ""),
        (MINIMAL + 'version = "new"', "version: ", ""),
        ('name = "a b"\nhandler = "h"', "name: 'a b' cannot be a model's name", ""),
        (MINIMAL + '[weights]\nonnx = "../w.onnx"', "weights.onnx: '../w.onnx' is not a path inside", ""),
        (MINIMAL + 'files = ["/etc/passwd"]', "files.0: '/etc/passwd' is not a path inside", ""),
        (MINIMAL + 'files = [".hidden"]', "files.0: ", ""),
        (MINIMAL + '[weights]\nstate_dict = "w.pt"', "weights: state_dict and module belong together", ""),
        (MINIMAL + 'labels = "gone.txt"', "labels: gone.txt cannot be read", ""),
        (MINIMAL + 'labels = ["a", "b", "a"]', "labels: 'a' is there twice", ""),
        (MINIMAL + 'labels = ["a\\nb", "c"]', "labels: 'a\\nb' holds a line break", ""),
        (MINIMAL + 'examples = ["a/x.json", "b/x.json"]', "examples: a/x.json and b/x.json would have one name", ""),
        (MINIMAL + 'files = ["model/"]\n[weights]\nonnx = "model/m.onnx"', "files: model/ holds model/m.onnx", "correct"),
        (MINIMAL + 'files = ["a/b", "a"]', "files: a holds a/b, which is named as well", ""),
        ("name = ", "cannot be read", "TOML"),
        (f"a = {5000 * '['}", "cannot be read", "TOML"),
        (f"top_k = {5000 * '9'}", "cannot be read", "TOML"),
        (MINIMAL + 'files = ["a\\u0000"]', "files.0: 'a\\x00' is not a path inside", ""),
    ],
)
def test_what_is_wrong_is_one_line_with_the_file_and_the_key(tmp_path: Path, text: str, message: str, hint: str) -> None:
    with pytest.raises(SlotwiseError) as raised:
        load_spec(written(tmp_path, text))
    assert message in raised.value.message
    assert hint in raised.value.hint
    assert "model.toml" in raised.value.message
    assert "\n" not in raised.value.message


def test_a_folder_without_a_model_toml_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(SlotwiseError) as raised:
        load_spec(tmp_path)
    assert "slotwise new" in raised.value.hint


@pytest.mark.parametrize("name", project.models())
def test_the_given_models_are_described_rightly(name: str) -> None:
    spec = load_spec(project.model_folder(name))
    assert spec.name == name
    assert set(spec.profiles) <= set(project.profiles())
