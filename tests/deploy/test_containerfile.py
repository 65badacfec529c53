"""What the Containerfile names is there, and the image that it describes is one that the daemon can run in."""

from __future__ import annotations

import re
import tomllib

import pytest

from forebay.daemon import load_settings

from .containerfile import CONTAINERFILE, ROOT, context_files, read_stages
from .images import IGNORE, final_stage, locked
from .settings_known import DAEMON

TEXT = CONTAINERFILE.read_text()


def test_all_that_the_build_may_see_is_there_and_is_all_that_the_wheel_needs() -> None:
    context = context_files(IGNORE.read_text())
    for name in context:
        assert (ROOT / name).exists(), name
    links = [path.resolve().name for path in (ROOT / "src/forebay").iterdir() if path.is_symlink()]
    assert set(links) <= set(context)
    assert (ROOT / ".containerignore").resolve() == IGNORE


def test_every_copied_path_is_in_the_build_or_of_the_stage_before() -> None:
    first, last = read_stages(TEXT)
    context = context_files(IGNORE.read_text())
    for *sources, _ in first.copies:
        assert all(source == "." or source in context for source in sources)
    assert last.copies == [["--from=build", "/opt/forebay", "/opt/forebay"]]


def test_the_entry_point_is_the_wheels_command_without_a_shell() -> None:
    program, *words = final_stage().command("ENTRYPOINT")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert program == f"/opt/forebay/bin/{next(iter(scripts))}"
    assert words == ["serve"]
    assert final_stage().rest["STOPSIGNAL"] == "SIGTERM"


def test_the_image_runs_as_a_number_that_is_not_roots() -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", final_stage().rest["USER"])


def test_all_that_is_installed_comes_with_a_hash_and_none_of_it_is_jax() -> None:
    first, _ = read_stages(TEXT)
    for command in [command for run in first.runs for command in run.split(" && ") if " install " in command]:
        is_own = "--no-deps --no-index /dist/" in command
        assert is_own or "--require-hashes --only-binary :all: -r requirements/" in command, command
    assert not {"jax", "jaxlib"} & locked("requirements/runtime.txt").keys()
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert build["dependency-groups"]["build"] == build["build-system"]["requires"]


def test_the_images_variables_are_settings_that_the_daemon_takes() -> None:
    own = {name: value for name, value in final_stage().environment.items() if name.startswith("FOREBAY_")}
    assert own.keys() <= DAEMON
    settings = load_settings(environment=own)
    assert settings.pool.startswith("/dev/shm/")
    assert settings.keep_pool
    for endpoint in (settings.control_endpoint, settings.data_endpoint, settings.trainer_endpoint):
        assert endpoint.startswith("ipc:///run/forebay/")


def test_no_variable_keeps_python_from_using_or_making_bytecode() -> None:
    assert all("PYTHONDONTWRITEBYTECODE" not in stage.environment for stage in read_stages(TEXT))


def test_an_instruction_that_these_tests_do_not_know_is_told() -> None:
    with pytest.raises(AssertionError, match="know no VOLUME"):
        read_stages(f"{TEXT}\nVOLUME /dev/shm\n")
