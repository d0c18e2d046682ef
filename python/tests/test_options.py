"""Keywords, Ray's flags and the docstrings follow from the library's table of options."""

import inspect

import pytest

import openwork
from openwork import _native
from openwork._model import OPTIONS, default

TABLE = _native.run_options()


def test_prune_model_has_every_option_with_its_default():
    parameters = inspect.signature(openwork.prune_model).parameters
    for option in TABLE:
        parameter = parameters[option["name"]]
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        if not option["required"]:
            assert parameter.default == default(option), option["name"]
        assert f"{option['name']}: {option['help']}" in openwork.prune_model.__doc__
    assert parameters["samples"].default == 128 and parameters["resume"].default is False
    assert not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def test_the_ray_command_has_every_option():
    pytest.importorskip("ray")
    import openwork.ray
    from openwork._ray_command import _parser

    help_text = " ".join(_parser()._subparsers._group_actions[0].choices["prune"].format_help().split())
    for option in TABLE:
        assert f"--{option['flag']}" in help_text, option["name"]
        assert " ".join(option["help"].split()) in help_text, option["name"]
        for alias in option["aliases"]:
            assert f"--{alias}" not in help_text, alias
    given = vars(_parser().parse_args("prune m --calib c -o out --sequential --starts 3 --samples 7 --resume".split()))
    for name, value in dict(calib="c", out="out", sequential="on", single_tokens=3, samples=7, resume=True).items():
        assert given[name] == value
    assert "eval" not in given and "seed" not in given, "defaults are the library's"
    parameters = inspect.signature(openwork.ray.prune_model).parameters
    assert set(OPTIONS) <= set(parameters)


def test_one_default_method_everywhere():
    assert OPTIONS["method"]["default"] == "admm"
    assert inspect.signature(openwork.prune).parameters["method"].default == "admm"


def test_errors_name_keywords(tmp_path):
    def refused(**options):
        with pytest.raises(openwork.OpenworkError) as error:
            openwork.prune_model(tmp_path, out=tmp_path / "out", calib="c.txt", **options)
        return str(error.value)

    assert refused(max_memory="4X") == "max_memory='4X': give a size such as 4G or 800M"
    assert refused(samples=-1) == "samples=-1: this value cannot be used"
    assert refused(resume=True, force=True) == "resume=True and force=True cannot be combined; give one of them"
    assert refused(dtype="f8") == "dtype='f8': give bf16, f16 or f32"
