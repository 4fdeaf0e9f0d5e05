"""The messages of a comparison when the other runtime cannot run."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from taskmap.cli.run import compare as run_compare
from taskmap.errors import InputError


def refuses(*_: object, **__: object) -> None:
    raise RuntimeError("Unsupported model IR version: 99")


def test_another_runtime_that_refuses_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = SimpleNamespace(SessionOptions=SimpleNamespace, InferenceSession=refuses)
    monkeypatch.setattr(run_compare, "import_module", lambda name: stub)
    with pytest.raises(InputError, match=r"ONNX Runtime cannot run the model\n  model.onnx\n  Unsupported") as caught:
        run_compare.other_outputs("onnxruntime", Path("model.onnx"), {}, None)
    assert "--compare reference" in str(caught.value)
