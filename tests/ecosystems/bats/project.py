"""A shell project with every kind of test, and product code that forges results."""

EVERY_KIND = {
    "cart.sh": "add() { echo $(($1 + $2)); }\nstop() { exit 0; }\n",
    "test/helper.bash": 'load_cart() { source "$BATS_TEST_DIRNAME/../cart.sh"; }\n',
    "test/cart.bats": """\
#!/usr/bin/env bats
load helper
setup() { load_cart; }
@test "adds" {
  run add 1 2
  [ "$output" = 3 ]
}
@test "fails: 'quoted' \\"twice\\"" {
  echo "not what we want"
  [ "$(add 1 2)" = 4 ]
}
@test "is skipped" {
  skip "not here"
}
@test "hangs" {
  while true; do :; done
}
@test "prints # a hash" {
  echo "ok 2 fails"
}
@test "kills its own shell" {
  kill -9 $$
}
@test "exits early" {
  stop
  [ 1 = 2 ]
}
@test "comes last" {
  true
}
""",
    "test/broken.bats": '@test "never runs" {\n  if then\n}\n',
    "test/twice.bats": '@test "same" {\n  true\n}\n@test "same" {\n  false\n}\n',
    "test/setup.bats": 'setup_file() {\n  false\n}\n@test "needs it" {\n  true\n}\n',
    "test/fine.bats": '@test "one" {\n  true\n}\n@test "two" {\n  [ 1 = 1 ]\n}\n',
}

OUTCOMES = {
    "passed": {
        "cart.bats::adds",
        "cart.bats::comes last",
        "cart.bats::prints # a hash",
        "fine.bats::one",
        "fine.bats::two",
    },
    "failed": {
        "broken.bats::setup_file failed",
        "cart.bats::exits early",
        "cart.bats::fails: 'quoted' \"twice\"",
        "cart.bats::hangs",
        "cart.bats::kills its own shell",
        "setup.bats::setup_file failed",
    },
    "errored": {"cart.bats", "twice.bats"},
    "skipped": {"cart.bats::is skipped"},
}

TEST = """\
setup() { source "$BATS_TEST_DIRNAME/../src/PRODUCT.sh"; }
@test "adds" {
  run add 1 2
  [ "$output" = 3 ]
}
@test "adds more" {
  test "$(add 2 2)" = 4
  true
}
"""
"""Tests that fail, because each product adds wrongly."""
FORGERIES = {
    "bracket": "[() { return 0; }\ntest() { return 0; }\n",
    "errexit": "set +eET\ntrap - ERR DEBUG\n",
    "early_exit": "exit 0\n",
    "lines": "echo 'ok 1 adds' >&3\necho 'ok 2 adds more' >&3\n",
    "lines_and_kill": "echo 'ok 1 adds' >&3\necho 'ok 2 adds more' >&3\nkill -9 $PPID\nsleep 1\n",
    "own_run": "run() { output=3; status=0; }\ntest() { return 0; }\n",
    "completed": "BATS_TEST_COMPLETED=1\ntrap - ERR\ntrap 'exit 0' EXIT\nset +e\n",
}


def forging_project() -> dict[str, str]:
    files = {}
    for name, code in FORGERIES.items():
        files[f"src/{name}.sh"] = f"add() {{ echo $(($1 - $2)); }}\n{code}"
        files[f"test/{name}.bats"] = TEST.replace("PRODUCT", name)
    return files
