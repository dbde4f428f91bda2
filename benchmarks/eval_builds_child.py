"""Build and grade instances with swebench 4.1.0's own functions; `eval_builds.py` runs this file with that package's Python.

    python eval_builds_child.py REQUEST

REQUEST is a JSON file with `rows`, `specs` (what the harness keeps in its table, by instance id), `workers` and `id` (of the
run). The base image of the harness must be here. Prints JSON: seconds of each stage, and the ids that are resolved.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import docker
from swebench.harness import constants, grading, log_parsers, run_evaluation
from swebench.harness.docker_build import build_env_images, build_instance_images
from swebench.harness.log_parsers.python import parse_log_pytest

TAG = "latest"
"""The tag that the harness gives its functions when it runs as a whole; their own default, none, is refused."""


def main() -> None:
    """Do all stages in the current folder, where the harness writes its logs."""
    request = json.loads(Path(sys.argv[1]).read_text())
    rows, workers = request["rows"], request["workers"]
    for row in rows:
        # the harness knows an environment by repository and version, so each instance gets a version of its own
        row["version"] = row["instance_id"]
        specs = constants.MAP_REPO_VERSION_TO_SPECS.setdefault(row["repo"], {})
        specs[row["version"]] = request["specs"][row["instance_id"]]
        constants.MAP_REPO_TO_EXT[row["repo"]] = "py"
        for parsers in (log_parsers.MAP_REPO_TO_PARSER, grading.MAP_REPO_TO_PARSER):
            parsers[row["repo"]] = parse_log_pytest
    Path("rows.json").write_text(json.dumps(rows))
    gold = [
        {"instance_id": row["instance_id"], "model_name_or_path": "gold", "model_patch": row["patch"]}
        for row in rows
    ]
    Path("gold.json").write_text(json.dumps(gold))
    client = docker.from_env()
    seconds = {}
    began = time.monotonic()
    _, failed = build_env_images(client, rows, max_workers=workers, instance_image_tag=TAG, env_image_tag=TAG)
    seconds["environments"] = time.monotonic() - began
    began = time.monotonic()
    _, failed_instances = build_instance_images(client, rows, max_workers=workers, tag=TAG, env_image_tag=TAG)
    seconds["instances"] = time.monotonic() - began
    began = time.monotonic()
    run_evaluation.main(
        dataset_name="rows.json",
        split="test",
        instance_ids=[],
        predictions_path="gold.json",
        max_workers=workers,
        force_rebuild=False,
        cache_level="instance",
        clean=False,
        open_file_limit=4096,
        run_id=request["id"],
        timeout=600,
        namespace=None,
        rewrite_reports=False,
        modal=False,
    )
    seconds["grading"] = time.monotonic() - began
    [report] = Path().glob(f"gold.{request['id']}.json")
    print(
        json.dumps(
            {
                "seconds": seconds,
                "failed": [str(one) for one in (*failed, *failed_instances)],
                "resolved": sorted(json.loads(report.read_text())["resolved_ids"]),
            }
        )
    )


if __name__ == "__main__":
    main()
