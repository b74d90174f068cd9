"""Flag, else environment, else settings file, else default; and every way to get a value wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

CASES = Path(__file__).parent.parent / "data" / "cases"
SOLVE = ("solve", "problem.json", "--method", "store-all", "--dry-run", "--format", "json")


def budgets() -> list[tuple[str, str]]:
    lines = (CASES / "240_budgets.txt").read_text("utf-8").splitlines()
    return [(value.strip()[1:-1], meaning) for value, _, meaning in (line.partition("\t") for line in lines if line)]


@pytest.mark.parametrize(("value", "meaning"), budgets())
def test_budget_forms(remat, value: str, meaning: str) -> None:
    method = "auto" if "%" in value else "store-all"
    done = remat("solve", "problem.json", "--method", method, "--dry-run", "--format", "json", f"--budget={value}")
    may_be_number, may_be_error = meaning[0].isdigit() or meaning.startswith("as "), "error" in meaning
    assert done.code in ([0] if may_be_number else []) + ([2] if may_be_error else []), done.err
    if done.code == 2:
        assert done.error.startswith(f"--budget: {value!r}")
        assert "write" in done.hint
    elif "%" in value:
        predicted = done.json["predicted"]
        fixed, peak = predicted["fixed_bytes"], predicted["store_all_peak_bytes"]
        assert done.json["budget_bytes"] == fixed + (peak - fixed) * 4 // 5
    else:
        wanted = {"as": 8_000_000_000}.get(meaning.split()[0], meaning.split()[0])
        assert done.json["budget_bytes"] == int(wanted)


def test_the_budget_is_echoed(remat) -> None:
    done = remat("solve", "problem.json", "--budget", "8GiB", "--method", "store-all", "--dry-run")
    assert "8589934592 bytes (8.6 GB)" in done.out
    done = remat("solve", "problem.json", "--budget", "100%", "--method", "store-all", "--dry-run")
    assert "5 bytes: fixed + 100 % of the store-all peak" in done.out


def seed_of(done) -> int:
    assert done.code == 0, done.err
    return done.json["solver"]["seed"]


def test_order_of_precedence(remat, folder: Path) -> None:
    call = (*SOLVE, "--budget", "100%")
    (folder / "s.yaml").write_text("seed: 3\n")
    assert seed_of(remat(*call)) == 0
    assert seed_of(remat(*call, "--config", "s.yaml")) == 3
    assert seed_of(remat(*call, "--config", "s.yaml", env={"REMAT_SEED": "2"})) == 2
    assert seed_of(remat(*call, "--config", "s.yaml", "--seed", "1", env={"REMAT_SEED": "2"})) == 1
    assert seed_of(remat(*call, env={"REMAT_CONFIG": "s.yaml"})) == 3


def test_a_settings_file_serves_all_commands(remat, folder: Path) -> None:
    (folder / "s.yaml").write_text(
        "budget: 100%\nmethod: store-all\nformat: json\nseed: 7\niterations: 3\ndim:\n  batch: 4\n"
    )
    assert seed_of(remat("solve", "dynamic.onnx", "--dry-run", "--config", "s.yaml")) == 7
    assert remat("info", "dynamic.onnx", "--config", "s.yaml").json["dims"] == {"batch": 4}


def test_dims_of_a_settings_file(remat, folder: Path) -> None:
    (folder / "s.yaml").write_text("format: json\ndim:\n  batch: 4\n")
    assert remat("info", "dynamic.onnx", "--config", "s.yaml").json["dims"] == {"batch": 4}
    assert remat("info", "dynamic.onnx", "--config", "s.yaml", "--dim", "batch=2").json["dims"] == {"batch": 2}
    assert remat("info", "dynamic.onnx", "--format", "json", env={"REMAT_DIM": "batch=3"}).json["dims"] == {"batch": 3}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("seed: 1\nbugdet: 8GB\n", ["s.yaml", "line 2", "bugdet", "unknown key"]),
        ("seed: 1\nbudget: 8GB\nseed: 2\n", ["s.yaml", "line 3", "'seed' is given twice", "line 1"]),
        ("seed: abc\n", ["s.yaml", "line 1", "seed", "expected `int"]),
        ("seed: true\n", ["s.yaml", "line 1", "seed", "got `bool`"]),
        ("method: no\n", ["s.yaml", "line 1", "no is doubtful"]),
        ("method: false\n", ["s.yaml", "line 1", "method", "got `bool`"]),
        ("time_limit: 1:30\n", ["s.yaml", "line 1", "1:30 is doubtful"]),
        ("budget: 8_000\n", ["s.yaml", "line 1", "8_000 is doubtful"]),
        ("seed: 010\n", ["s.yaml", "line 1", "010 is doubtful"]),
        ("quiet: off\n", ["s.yaml", "line 1", "off is doubtful"]),
        ("dim: {batch: x}\n", ["s.yaml", "dim", "expected `int`"]),
        ("[1, 2]\n", ["s.yaml", "line 1"]),
        ("budget: 8G\n", ["budget in s.yaml", "'8G' is ambiguous"]),
        ("method: fastest\n", ["method in s.yaml", "no solve method 'fastest'"]),
        ("effort: huge\n", ["effort in s.yaml", "'huge' is not one of 'quick', 'normal', 'thorough'"]),
        ("seed: -1\n", ["seed in s.yaml", "-1"]),
        ("format: xml\n", ["format in s.yaml", "'xml' is not one of 'text', 'json'"]),
    ],
)
def test_bad_settings_files(remat, folder: Path, text: str, parts: list[str]) -> None:
    (folder / "s.yaml").write_text(text)
    budget = [] if "budget:" in text else ["--budget", "100%"]
    done = remat("solve", "problem.json", "--config", "s.yaml", *budget)
    assert done.code == 2
    assert all(part in done.error for part in parts), done.error


@pytest.mark.parametrize("case", ["241_config.yaml", "244_config_tag.yaml"])
def test_trial_settings_files_are_refused(remat, case: str) -> None:
    done = remat("solve", "problem.json", "--config", CASES / case)
    assert done.code == 2
    assert case in done.error
    assert "line" in done.error


def test_an_empty_settings_file_means_defaults(remat) -> None:
    done = remat(*SOLVE, "--budget", "100%", "--config", CASES / "242_config_empty.yaml")
    assert seed_of(done) == 0


def test_a_missing_settings_file(remat) -> None:
    done = remat("solve", "problem.json", "--config", "gone.yaml")
    assert (done.code, done.error) == (2, "gone.yaml: cannot be read: No such file or directory")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("REMAT_SEED", "abc", "REMAT_SEED: 'abc' is not a valid integer"),
        ("REMAT_BUDGET", "8G", "REMAT_BUDGET: '8G' is ambiguous"),
        ("REMAT_DEVICE", "gpu", "REMAT_DEVICE: 'gpu' is not a device"),
        ("REMAT_METHOD", "fastest", "REMAT_METHOD: there is no solve method 'fastest'"),
        ("REMAT_TIME_LIMIT", "-1", "REMAT_TIME_LIMIT: -1.0 is not in the range"),
    ],
)
def test_bad_environment_names_the_variable(remat, name: str, value: str, text: str) -> None:
    done = remat("solve", "problem.json", env={name: value, "REMAT_BUDGET": "100%"} | {name: value})
    assert done.code == 2
    assert done.error.startswith(text), done.error


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--seed", "x"], "--seed: 'x' is not a valid integer"),
        (["--method", "fastest"], "--method: there is no solve method 'fastest'"),
        (["--device", "gpu"], "--device: 'gpu' is not a device"),
        (["--effort", "huge"], "--effort: 'huge' is not one of 'quick', 'normal', 'thorough'"),
        (["--time-limit", "0"], "--time-limit: 0.0 is not in the range"),
        (["--threads", "0"], "--threads: 0 is not in the range"),
        (["--dim", "batch"], "--dim: 'batch' is not NAME=N"),
        (["--dim", "batch=-1"], "--dim: 'batch=-1' is not NAME=N"),
        (["--dim", "batch=1", "--dim", "batch=2"], "--dim: dim batch is given as 1 and as 2"),
    ],
)
def test_bad_flags_name_the_flag(remat, args: list[str], text: str) -> None:
    done = remat("solve", "problem.json", "--budget", "100%", *args)
    assert done.code == 2
    assert done.error.startswith(text), done.error
    assert done.hint
