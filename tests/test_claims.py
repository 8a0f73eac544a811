"""What README and SECURITY claim: each promise names the tests that fail where it is false, and no promise is without one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# What is claimed, word for word (but for markup), and the tests that would fail were it false.
README = {
    "a bad request costs its sender a 400 and its batch-mates nothing": [
        "tests/worker/test_invariants.py::test_a_batch_answers_as_each_request_alone",
        "tests/worker/test_invariants.py::test_every_request_is_answered_once_in_order_from_its_own_rows",
        "tests/server/test_host_grpc.py::test_a_bad_one_of_eight_costs_nobody_else_anything",
    ],
    "`make stop` ends what `make serve` started": ["tests/server/test_serve.py::test_a_detached_server_from_start_to_stop"],
    "which changes no line of its code": [
        "tests/archive/test_guarded.py::test_every_file_stays_what_it_is_and_the_digests_are_right"
    ],
    "finding the rows that make it fail": [
        "tests/worker/test_invariants.py::test_bisection_finds_k_guilty_rows_in_about_2k_log_calls"
    ],
    "handing every row back to the request that owns it": [
        "tests/worker/test_invariants.py::test_a_wrong_number_of_outputs_is_an_error_never_a_shift",
        "tests/worker/test_invariants.py::test_groups_that_lose_or_repeat_rows_give_errors_not_wrong_answers",
    ],
    "`slotwise new mine` writes such a folder, `slotwise build mine` the archive": [
        "tests/test_wheel.py::test_a_new_model_is_built_from_an_empty_folder"
    ],
    "Loopback and tokens by default": [
        "tests/server/test_plain_calls.py::test_only_loopback_listens",
        "tests/server/test_triton.py::test_no_api_is_open_without_its_token",
    ],
    "digests verified": ["tests/worker/test_digests.py::test_removing_the_digests_does_not_help"],
    "no pickle": ["tests/archive/test_own_model.py::test_a_pickle_is_refused_at_build_and_nothing_in_it_runs"],
    "no telemetry": ["tests/worker/test_engines.py::test_nobody_is_told_that_openvino_was_imported"],
}
SECURITY = {
    "A request costs nobody but its sender.": README["a bad request costs its sender a 400 and its batch-mates nothing"],
    "A body that ends its worker, and one more when it goes alone, is refused for ten minutes": [
        "tests/server/test_killers.py::test_bodies_that_end_workers_cost_nobody_else_anything"
    ],
    "No answer holds what is not the client's:": [
        "tests/worker/test_invariants.py::test_no_slot_shows_what_went_wrong_inside_or_whom_else_it_served",
        "tests/backends/test_served_model.py::test_a_model_that_cannot_start_refuses_at_once_and_says_why_to_the_operator",
    ],
    "An archive is looked at before it is believed.": [
        "tests/worker/test_digests.py::test_removing_the_digests_does_not_help",
        "tests/migrate/test_migrate.py::test_a_tarball_writes_nothing_outside",
    ],
    "One client cannot keep the others out:": [
        "tests/frontend/test_grpc.py::test_idle_calls_keep_nobody_waiting",
        "tests/frontend/test_client_connections.py::test_who_is_idle_makes_room",
    ],
    "No forwarded header is believed but a trusted proxy's": [
        "tests/frontend/test_client_address.py::test_the_last_address_that_is_no_proxy_is_the_clients",
        "tests/frontend/test_allowed_hosts.py::test_a_forwarded_header_is_not_believed_on_loopback_either",
    ],
    "Another site's page gets nothing": [
        "tests/frontend/test_allowed_hosts.py::test_other_names_are_not",
        "tests/frontend/test_allowed_hosts.py::test_no_other_sites_page_loads_a_model",
    ],
    "A request is read in one way": ["tests/frontend/test_smuggling.py::test_there_is_one_answer_or_none"],
    "Closed by default:": [
        "tests/server/test_ray.py::test_everything_listens_on_loopback_or_wants_the_token",
        "tests/server/test_management_api.py::test_ping_needs_no_token_and_everything_else_does",
        "tests/server/test_triton_process.py::test_a_secret_argument_is_never_seen_in_the_list_of_processes",
        "tests/server/test_watching.py::test_planted_secrets_are_in_no_log_of_a_real_stack",
    ],
    "Weights are no pickles.": [
        "tests/worker/test_exported_program.py::test_what_would_run_code_of_the_file_is_refused",
        "tests/zoo/test_transformers_files.py::test_a_pickle_is_refused",
    ],
    "Nobody is told what you run.": ["tests/worker/test_engines.py::test_nobody_is_told_that_openvino_was_imported"],
    "A gateway that dies is started again at once": [
        "tests/frontend/test_keeper.py::test_a_gateway_that_dies_is_started_again_where_it_was"
    ],
}


@cache
def page(name: str) -> str:
    """The page's words, without markup, figures and tables."""
    text = (ROOT / name).read_text("utf-8")
    text = re.sub(r"```.*?```|<!--.*?-->|^\|[^\n]*$", "", text, flags=re.DOTALL | re.MULTILINE)
    return " ".join(re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("*", "").split())


@cache
def names_in(file: str) -> set[str]:
    """The names of a file's tests."""
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(("name", "claims"), [("README.md", README), ("SECURITY.md", SECURITY)])
def test_what_is_claimed_stands_there_and_is_tested(name: str, claims: dict[str, list[str]]) -> None:
    assert [claim for claim in claims if claim not in page(name)] == []
    named = {test for tests in claims.values() for test in tests}
    assert sorted(test for test in named if test.partition("::")[2] not in names_in(test.partition("::")[0])) == []


def test_every_promise_of_security_is_claimed() -> None:
    promised = (ROOT / "SECURITY.md").read_text("utf-8").partition("## What is promised")[2].partition("\n## ")[0]
    promises = [" ".join(words.split()) for words in re.findall(r"^- \*\*(.*?)\*\*", promised, re.MULTILINE | re.DOTALL)]
    assert len(promises) > 5
    assert [each for each in promises if not any(claim.startswith(each) for claim in SECURITY)] == []
