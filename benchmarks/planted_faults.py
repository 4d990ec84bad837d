"""Does the suite notice single faults? `python -m benchmarks.planted_faults [NAME ...] [--turn N]`.

Each fault is planted alone in a copy of the tree, and the tests that are named with it have to fail. All take ten
minutes of a core, and `--turn N` takes a dozen from all over the list: the next number the next dozen. Of each fault a
line is printed: "noticed" with the first test that failed, or

SURVIVED  its tests pass: write one that says what a user would lose;
MOVED     the text to change does not stand in its file once: write down where that code stands now;
BROKEN    its tests cannot be run with it: it is no fault that anybody would make.

The exit code is 0 where all were noticed, and 1 where not, or where the named tests fail without any fault.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    "agentic_iqa", "benchmarks", "configs", "data", "optimizers", "program", "signatures", "tests", "pyproject.toml",
)  # fmt: skip
EACH_TURN = 12
LONGEST_S = 300
"""A lock that was never let go shows as tests without end."""


class Fault(NamedTuple):
    """In a file, one text in the place of another that stands there once; and the tests that have to fail then."""

    name: str
    file: str
    old: str
    new: str
    tests: str
    """Files or tests below tests/, parted by blanks."""

    @property
    def nodes(self) -> list[str]:
        """The tests as pytest takes them."""
        return [f"tests/{test}" for test in self.tests.split()]

    def stands(self, root: Path) -> bool:
        """Return whether the text to change stands in its file once."""
        path = root / self.file
        return path.is_file() and path.read_text("utf-8").count(self.old) == 1


def main(argv: Sequence[str] | None = None) -> int:
    """Plant the faults, and say of each whether it was noticed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planted_faults")
    parser.add_argument("names", metavar="NAME", nargs="*", help="faults to plant (default: all)")
    parser.add_argument("--turn", metavar="N", type=int, help="plant the faults of this turn alone")
    arguments = parser.parse_args(argv)
    known = {fault.name: fault for fault in FAULTS}
    if unknown := [name for name in arguments.names if name not in known]:
        parser.error(f"fault {unknown[0]!r}: is not known; see the list in {Path(__file__).name}")
    if arguments.names:
        faults = [known[name] for name in arguments.names]
    elif arguments.turn is not None:
        faults = faults_of_turn(arguments.turn)
        print(f"turn {arguments.turn}: {', '.join(fault.name for fault in faults)}")
    else:
        faults = FAULTS
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_of_tree(Path(folder, "tree"))
        nodes = sorted({node for fault in faults for node in fault.nodes})
        code, failed = run_tests(copy, nodes)
        if code != 0:
            print(f"without any fault pytest ends with code {code} ({failed or 'no test failed'}); mend that first")
            return 1
        verdicts = []
        for fault in faults:
            verdicts.append(verdict_on(fault, copy))
            print(f"{verdicts[-1]}  {fault.name}", flush=True)
    noticed = sum(verdict.startswith("noticed") for verdict in verdicts)
    print(f"{noticed} of {len(faults)} noticed")
    return 0 if noticed == len(faults) else 1


def faults_of_turn(turn: int) -> "list[Fault]":
    """Return the faults of a turn, from all over the list: as many turns as it takes plant each once."""
    turns = -(-len(FAULTS) // EACH_TURN)
    return FAULTS[turn % turns :: turns]


def copy_of_tree(copy: Path) -> Path:
    """Make a copy of what the tests run, without the user's data, and return it."""
    copy.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "raw"))
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


def verdict_on(fault: Fault, copy: Path) -> str:
    """Plant a fault in the copy, run its tests, take it out again, and return what came of it."""
    if not fault.stands(copy):
        return "MOVED"
    path = copy / fault.file
    text = path.read_text("utf-8")
    path.write_text(text.replace(fault.old, fault.new), "utf-8")
    try:
        code, failed = run_tests(copy, fault.nodes, LONGEST_S)
    except subprocess.TimeoutExpired:
        return f"noticed by tests that do not end within {LONGEST_S} s"
    finally:
        path.write_text(text, "utf-8")
    if code == 0:
        return "SURVIVED"
    if not failed:
        return "BROKEN"
    return f"noticed by {failed}"


def run_tests(copy: Path, nodes: Sequence[str], timeout_s: float | None = None) -> tuple[int, str]:
    """Return pytest's exit code on some tests of a copy, and the first that failed; empty where none did."""
    options = ["-q", "-x", "--tb=no", "-p", "no:cacheprovider", "-m", "slow or not slow"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**kept, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *nodes], cwd=copy, env=environment, capture_output=True, text=True,
        timeout=timeout_s,
    )  # fmt: skip
    # A file that cannot even be imported has no test in its line.
    failed = re.search(r"^(?:FAILED|ERROR) tests/(\S+::\S+)", done.stdout, re.MULTILINE)
    return done.returncode, failed[1] if failed else ""


FAULTS = [
    # Data: what leaks from one split into another, and what a label means
    Fault("evaluate-leaks-unchecked", "program/evaluation/evaluating.py",
        "        check_leaks(everything)",
        "        pass",
        "test_evaluate_command.py::test_labels_that_cannot_be_used_are_refused_before_anything_runs",
    ),
    Fault("content-leak-of-references", "data/splits.py",
        "for path in (sample.image, sample.reference):",
        "for path in (sample.image,):",
        "test_splits.py::test_the_same_content_in_two_splits_is_refused_whatever_its_name",
    ),
    Fault("versions-of-one-photograph-apart", "data/splits.py",
        "str(sample.reference or sample.image)",
        "str(sample.image)",
        "test_splits.py::test_samples_get_the_split_of_their_group_or_of_their_image",
    ),
    Fault("split-seed-ignored", "data/splits.py",
        "np.uint64(_key(str(seed)))",
        "np.uint64(_key('0'))",
        "test_splits.py::test_order_and_repeats_do_not_matter_and_the_seed_does",
    ),
    Fault("lower-is-better-of-a-line", "data/manifest.py",
        "return score if self.higher_is_better else 6 - score",
        "return score",
        "test_manifest.py::test_quality_is_linear_on_one_to_five",
    ),
    Fault("columns-flag", "data/manifest.py",
        "return cls(flags.columns, flags.mos_range,",
        "return cls({}, flags.mos_range,",
        "test_small_data.py::test_a_key_dmos_is_no_misspelt_mos",
    ),
    Fault("scale-of-most-scores-unchecked", "data/manifest.py",
        "if 2 * outside > len(scores):",
        "if outside > len(scores):",
        "test_labels.py::test_scores_that_cannot_be_on_their_scale_are_refused",
    ),
    Fault("thousands-read-as-decimals", "data/tables.py",
        '("," in cell or (has_whole and cell.endswith("0")))',
        "(has_whole and cell.endswith('0'))",
        "test_labels.py::test_a_column_that_can_be_read_in_two_ways_is_refused_with_both",
    ),
    Fault("nearest-own-group", "program/agent/labels.py",
        "if each.kind == kind and each.group != own and among(each):",
        "if each.kind == kind and among(each):",
        "test_nearest.py::test_no_label_of_an_images_own_photograph_or_of_another_kind_speaks_of_it",
    ),
    Fault("nearest-of-another-kind", "program/agent/labels.py",
        "if each.kind == kind and each.group != own",
        "if each.group != own",
        "test_nearest.py::test_no_label_of_an_images_own_photograph_or_of_another_kind_speaks_of_it",
    ),
    # Faults: what the pixels must show
    Fault("one-estimate-makes-a-cast", "program/expert/judge/faults.py",
        "least = min(chroma for _, chroma in lights)",
        "least = 1.0",
        "test_faults.py::test_light_is_tinted_by_each_estimate_of_its_colour",
    ),
    Fault("texture-called-noise", "program/expert/judge/faults.py",
        'known["power_most"] > _TEXTURED',
        'known["power_most"] > 99',
        "test_faults.py::test_texture_hides_noise_unless_flat_parts_have_as_much",
    ),
    Fault("noise-lost-in-texture", "program/expert/judge/faults.py",
        ' and known["noise_flat"] < _QUIET',
        "",
        "test_faults.py::test_texture_hides_noise_unless_flat_parts_have_as_much",
    ),
    Fault("shadows-crushed-by-a-corner", "program/expert/judge/faults.py",
        '("dim", 0.25, 1.0)',
        '("dim", 0.0, 1.0)',
        "test_faults.py::test_a_fault_needs_enough_of_what_shows_it",
    ),
    # Evaluation: figures, intervals, and the names under which they are kept
    Fault("groups-of-rows-by-image", "program/evaluation/record.py",
        "str(sample.reference or sample.image).encode()",
        "str(sample.image).encode()",
        "test_evaluation_runner.py::test_versions_of_one_photograph_are_one_group",
    ),
    Fault("spread-of-opinions-in-other-units", "program/evaluation/record.py",
        "round(4 * sample.mos_std / (high - low), 6)",
        "round(sample.mos_std, 6)",
        "test_evaluation_runner.py::test_opinions_are_compared_on_the_scale_of_the_scores",
    ),
    Fault("interval-one-sided", "program/evaluation/intervals.py",
        "np.quantile(defined, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])",
        "np.quantile(defined, [1 - CONFIDENCE, 1])",
        "test_intervals.py::test_an_interval_reaches_as_far_below_its_figure_as_above",
    ),
    Fault("interval-over-images-not-groups", "program/evaluation/figures.py",
        "[row.group for row in used], seed=seed).of(len(labelled))",
        "None, seed=seed).of(len(labelled))",
        "test_evaluation_runner.py::test_questions_about_one_image_are_one_group",
    ),
    Fault("rmse-higher-is-better", "program/evaluation/intervals.py",
        "metrics.rmse, direction=-1, bounds=(0, np.inf), closed_form",
        "metrics.rmse, bounds=(0, np.inf), closed_form",
        "test_selection.py::test_a_verdict_opens_with_what_the_test_shows",
    ),
    Fault("percentiles-swapped", "program/evaluation/figures.py",
        "(50, 95))",
        "(95, 50))",
        "test_evaluation_runner.py::test_the_slow_images_are_told_from_the_usual_ones",
    ),
    Fault("mlflow-model-tools-swapped", "program/evaluation/publishing.py",
        '(("model_srcc", "expected_level"), ("tools_srcc", "tool_mean_equal"))',
        '(("model_srcc", "tool_mean_equal"), ("tools_srcc", "expected_level"))',
        "test_metric_table.py::test_mlflow_lists_each_figure_under_its_own_name",
    ),
    Fault("mlflow-seed-wrong", "program/evaluation/publishing.py",
        'words = {"seed": record.seed, ',
        'words = {"seed": 0, ',
        "test_evaluate_command.py::test_a_run_is_logged_to_mlflow_with_figures_table_charts_and_report",
    ),
    Fault("secret-in-store-warning", "program/tracking/runs.py",
        "redact(self._store.tracking_uri), reason(error)",
        "self._store.tracking_uri, reason(error)",
        "test_tracking.py::test_no_warning_holds_the_password_of_a_stores_address",
    ),
    Fault("secret-in-store-reason", "program/tracking/store.py",
        "return said[1] if said else redact(text)[:200]",
        "return said[1] if said else text[:200]",
        "test_tracking.py::test_no_warning_holds_the_password_of_a_stores_address",
    ),
    Fault("html-unescaped", "program/evaluation/publishing.py",
        "autoescape=True, trim_blocks",
        "autoescape=False, trim_blocks",
        "test_report_page.py::test_everything_from_data_and_models_is_escaped",
    ),
    Fault("keys-in-rows", "program/evaluation/record.py",
        "redact(str(text)).split()",
        "str(text).split()",
        "test_evaluation_runner.py::test_no_key_stands_in_the_row_of_a_sample_that_failed",
    ),
    Fault("service-faults-never-reset", "program/running/runner.py",
        "            self._faults = 0\n            return",
        "            return",
        "test_evaluation_runner.py::test_a_model_service_that_fails_now_and_then_costs_those_samples_alone",
    ),
    # Compile: what is fitted on what, chosen by what, and drawn by which seed
    Fault("map-chosen-on-train", "optimizers/recipes/fits.py",
        "fitted = _with_best_map(fusion, train, held)",
        "fitted = _with_best_map(fusion, train, train)",
        "test_optimizers_unseen.py::test_a_map_is_chosen_on_photographs_that_it_was_not_fitted_on",
    ),
    Fault("fold-trains-on-held", "optimizers/job.py",
        "            else:\n                rest.append(sample)",
        "            rest.append(sample)",
        "test_small_data.py::test_few_labels_without_a_split_are_each_tested_once_by_group",
    ),
    Fault("candidates-judged-on-test", "optimizers/compiling.py",
        'self.replayed(asked, train), self.validation, "validation")',
        'self.replayed(asked, train), self.job.splits["test"], "validation")',
        "test_optimizers.py::test_recommends_the_uncompiled_program_when_nothing_helped",
    ),
    Fault("upside-down-of-few", "optimizers/job.py",
        "agreement.sign >= 0 or agreement.n < MIN_GROUPS",
        "agreement.sign >= 0",
        "test_small_data.py::test_fewer_than_eight_scores_are_never_taken_for_upside_down",
    ),
    Fault("seed-of-the-draw-ignored", "optimizers/job.py",
        "mcq=mcq, seed=self.settings.seed)",
        "mcq=mcq, seed=0)",
        "test_optimizers.py::test_the_seed_decides_which_samples_are_drawn",
    ),
    Fault("neighbours-of-few", "optimizers/recipes/nearest.py",
        "    least=fits.LEAST,",
        "    least=3,",
        "test_optimizers.py::test_too_few_samples_are_refused_by_name_and_number",
    ),
    Fault("demo-order", "optimizers/demos.py",
        "turns = chain.from_iterable(zip_longest(*kinds))",
        "turns = chain.from_iterable(kinds)",
        "test_optimizers.py::test_sets_of_demos_are_distinct_of_the_asked_size_and_spread_over_scores_and_answers",
    ),
    Fault("demos-say-the-opposite", "optimizers/demos.py",
        "_MEANING[nearest_level(quality) - 1]",
        "_MEANING[5 - nearest_level(quality)]",
        "test_optimizers.py::test_a_demo_says_what_its_score_means",
    ),
    Fault("gain-of-few", "optimizers/selection.py",
        "    if _few(new):\n        return False\n    gained",
        "    gained",
        "test_selection.py::test_no_map_is_taken_by_few_photographs_however_much_it_gains",
    ),
    Fault("gain-by-failing", "optimizers/selection.py",
        "sum(figure.asked or figure.n for figure in parts)",
        "sum(figure.n for figure in parts)",
        "test_selection.py::test_a_program_does_not_gain_by_failing_on_the_hard_samples",
    ),
    Fault("ties-go-to-the-later", "optimizers/selection.py",
        "better = _order(new) > _order(old)\n            if better",
        "better = _order(new) >= _order(old)\n            if better",
        "test_selection.py::test_an_optimizer_that_changed_no_answer_is_not_taken",
    ),
    Fault("dearer-for-nothing", "optimizers/selection.py",
        "if better and not (costs_more(new, old) and not _sure_gain(new, old)):",
        "if better:",
        "test_selection.py::test_a_candidate_that_costs_more_is_taken_for_a_sure_gain_alone",
    ),
    Fault("few-folds-adopted", "optimizers/selection.py",
        "first is None or first.descriptive or first.sign < 0",
        "first is None or first.sign < 0",
        "test_small_data.py::"
        "test_what_is_surely_better_or_errs_less_than_the_old_scores_on_their_best_line_is_adopted",
    ),
    Fault("the-mean-adopted", "optimizers/selection.py",
        "order is None or order.sign <= 0 or error",
        "order is None or error",
        "test_selection.py::test_of_few_labels_the_error_decides_beside_the_old_scores_on_their_best_line",
    ),
    # Agent: whose pixels, which region, how often planned again
    Fault("reference-swapped", "program/agent/executor.py",
        "runner.measure(tool, image, reference,",
        "runner.measure(tool, reference or image, reference and image,",
        "test_executor.py::test_the_image_in_question_is_measured_against_its_reference_and_not_the_other_way_"
        "round",
    ),
    Fault("scores-of-a-region-filed-as-global", "program/agent/executor.py",
        "work.scores.setdefault(region, {})",
        "work.scores.setdefault(GLOBAL, {})",
        "test_executor.py::test_a_callers_box_is_cropped_shown_measured_and_filed",
    ),
    Fault("located-box-by-width-alone", "program/agent/executor.py",
        "place.y1 * height)",
        "place.y1 * width)",
        "test_executor.py::test_the_model_locates_a_region_nobody_boxed",
    ),
    Fault("region-beside-the-whole-reference", "program/agent/executor.py",
        "reference = IMAGES.crop(self.reference, box) if self.reference else None",
        "reference = self.reference",
        "test_executor.py::test_a_callers_box_is_cropped_shown_measured_and_filed",
    ),
    Fault("same-pixels-judged", "program/agent/loop.py",
        "if state.is_iqa and IMAGES.same_pixels(image, reference):",
        "if False:",
        "test_agent.py::test_an_image_that_is_its_own_reference_scores_5_whatever_model_tools_and_fusion_say",
    ),
    Fault("replan-failed-tool-never", "program/agent/replan.py",
        "if log.error and log.alternative and log.distortion not in scores.get(log.region, {}):",
        "if False:",
        "test_replan.py::test_a_failed_tool_is_a_gap_only_while_another_fits",
    ),
    Fault("contradiction-at-the-threshold", "program/agent/replan.py",
        "max(scores) > HIGH_SCORE",
        "max(scores) >= HIGH_SCORE",
        "test_replan.py::test_contradictions_between_findings_and_scores",
    ),
    Fault("replans-one-more", "program/agent/summarizer.py",
        "state.iteration_count < state.max_replan_iterations",
        "state.iteration_count <= state.max_replan_iterations",
        "test_summarizer.py::test_no_replan_at_the_limit",
    ),
    Fault("second-look-with-the-same-tool", "program/agent/looking.py",
        "if spec.name in tried or",
        "if",
        "test_agent.py::test_without_new_evidence_nothing_is_asked_again",
    ),
    Fault("asked-again-though-its-belief-is-known", "program/agent/summarizer.py",
        "if before is None or gap is None or gap.is_of_words or",
        "if True or",
        "test_agent.py::test_a_contradiction_is_settled_by_another_tool_and_the_model_is_not_asked_again",
    ),
    Fault("demos-for-the-embedded-expert", "program/agent/saving.py",
        "if not predictor.demos or not known_traits(lm).embedded:",
        "if not predictor.demos or known_traits(lm):",
        "test_saving.py::test_demos_for_the_embedded_expert_are_refused_in_one_line_and_left_out_by_force",
    ),
    Fault("oldest-reasons-kept", "program/agent/state.py",
        "self.replan_history = history[-HISTORY_LIMIT:]",
        "self.replan_history = history[:HISTORY_LIMIT]",
        "test_state.py::test_the_oldest_of_more_than_ten_replans_goes_first_with_a_warning",
    ),
    Fault("options-in-another-order", "program/common/text.py",
        'pairs = [(chr(ord("A") + i), _one_line(text)) for i, text in enumerate(options)]',
        'pairs = [(chr(ord("A") + i), _one_line(text)) for i, text in enumerate(sorted(options))]',
        "test_query.py::test_query_type_and_options_match_the_table",
    ),
    Fault("own-reasons-of-an-answer-lost", "program/agent/summarizer.py",
        "in_sentences(answer.quality_reasoning, *notes)",
        "in_sentences(*notes)",
        "test_summarizer.py::test_a_score_fuses_tools_and_level_probabilities",
    ),
    Fault("card-unescaped", "program/agent/assessment.py",
        "jinja2.Environment(autoescape=True)",
        "jinja2.Environment(autoescape=False)",
        "test_outputs.py::test_what_a_model_writes_is_text_on_a_notebooks_card",
    ),
    # Fusion
    Fault("fusion-smoothing-alone", "program/fusion/scores.py",
        "if not belief or alone or (power == 1",
        "if not belief or (power == 1",
        "test_fusion.py::test_the_note_says_what_the_score_was_made_of",
    ),
    Fault("smoothing-shared-by-five", "program/fusion/levels.py",
        "SMOOTHING / (len(LEVELS) - 1)",
        "SMOOTHING / len(LEVELS)",
        "test_fusion.py::test_a_single_level_is_smoothed",
    ),
    Fault("disagreement-past-its-threshold", "program/fusion/scores.py",
        "- expected_level(probabilities)) < DISAGREEMENT",
        "- expected_level(probabilities)) <= DISAGREEMENT",
        "test_fusion.py::test_tools_and_model_disagree_from_one_and_a_half_levels_on",
    ),
    # Tools: what a reading depends on, and who takes it
    Fault("readings-key-no-threads", "program/tools/runner.py",
        "/{place}/{threads}",
        "/{place}",
        "test_readings_cache.py::test_a_reading_on_another_number_of_threads_is_taken_anew",
    ),
    Fault("reading-of-another-reference", "program/tools/runner.py",
        '            target.reference.sha256 if target.reference else "-",\n',
        '            "-",\n',
        "test_tools_runner.py::test_the_cache_tells_apart_what_a_value_depends_on",
    ),
    Fault("reading-with-other-parameters", "program/tools/runner.py",
        "registry.file_sha256(parameters) if parameters else",
        "",
        "test_readings_cache.py::test_a_reading_by_other_parameters_or_another_version_is_taken_anew",
    ),
    Fault("reading-of-another-version", "program/tools/runner.py",
        '            registry.installed_version(spec.library) or "",\n',
        "",
        "test_readings_cache.py::test_a_reading_by_other_parameters_or_another_version_is_taken_anew",
    ),
    Fault("runner-no-single-flight", "program/tools/runner.py",
        "            with single_flight(key):\n",
        "            if True:\n",
        "test_readings_cache.py::test_two_threads_that_judge_one_image_measure_it_once",
    ),
    Fault("category-of-a-reading-ignored", "program/tools/runner.py",
        "self.calibration.score(spec.name, result.raw, category)",
        "self.calibration.score(spec.name, result.raw)",
        "test_tools_runner.py::test_the_category_moves_the_score_and_not_the_reading",
    ),
    Fault("tool-direction-ignored", "program/evaluation/metrics.py",
        "sign: Literal[-1, 1] = 1 if higher_is_better else -1",
        "sign: Literal[-1, 1] = 1",
        "test_tools_calibration.py::test_a_known_logistic_is_recovered_in_either_direction",
    ),
    Fault("identities-fitted", "program/evaluation/metrics.py",
        "values, scores = values[differs], scores[differs]",
        "",
        "test_tools_calibration.py::test_identities_in_the_data_do_not_bend_the_map",
    ),
    Fault("calibrate-any-split", "program/evaluation/calibrating.py",
        'if split in ("all", s.split) and',
        "if",
        "test_tools_calibration.py::test_what_cannot_be_calibrated_is_one_line_and_exit_code_2",
    ),
    Fault("tools-measured-on-what-trained-them", "program/evaluation/calibrating.py",
        " if data.names.isdisjoint(map(str.casefold, spec.trained_on))",
        "",
        "test_tools_calibration.py::test_a_tool_is_not_measured_on_the_scores_that_it_was_trained_on",
    ),
    # Language models: budgets, waits, kept answers
    Fault("max-tokens-ignored", "program/lms/limits.py",
        "limits = (arguments.max_calls, arguments.max_cost, arguments.max_tokens)",
        "limits = (arguments.max_calls, arguments.max_cost, None)",
        "test_batch.py::test_no_more_is_spent_than_each_flag_of_the_budget_allows",
    ),
    Fault("outer-budget-uncounted", "program/lms/limits.py",
        "            for budget in self._chain:\n                budget.calls += 1",
        "            for budget in self._chain[:1]:\n                budget.calls += 1",
        "test_budget.py::test_the_outer_budget_holds_inside_an_inner_one",
    ),
    Fault("cost-of-threads-refund", "program/lms/limits.py",
        "                budget.calls -= 1\n                budget._in_flight -= 1",
        "                budget._in_flight -= 1",
        "test_budget.py::test_a_call_that_a_cache_answered_is_given_back_to_every_budget",
    ),
    Fault("cost-of-the-last-call-alone", "program/lms/call.py",
        "entry.cost_usd = (entry.cost_usd or 0.0) + receipt.cost_usd",
        "entry.cost_usd = receipt.cost_usd",
        "test_budget.py::test_a_hosted_models_calls_are_priced_by_its_answers_tokens",
    ),
    Fault("gate-one-request-too-many", "program/lms/limits.py",
        "len(self._starts) >= most:",
        "len(self._starts) > most:",
        "test_gate.py::test_no_window_holds_more_requests_than_allowed",
    ),
    Fault("pause-holds-one-thread-alone", "program/lms/call.py",
        "        gate_of(question.lm).pause(hint)\n",
        "        pass\n",
        "test_wire_ladder.py::test_a_pause_that_a_host_asks_for_holds_the_questions_of_other_threads",
    ),
    Fault("backoff-does-not-grow", "program/lms/call.py",
        "    question.repeats += 1\n",
        "",
        "test_wire_ladder.py::test_each_repeat_waits_twice_as_long_as_the_one_before",
    ),
    Fault("kept-answer-of-other-demos", "program/lms/ask.py",
        "        question.demos, question.config,",
        "        question.config,",
        "test_ask.py::test_a_kept_answer_is_not_given_to_a_program_with_other_demos_or_settings",
    ),
    Fault("kept-answer-at-another-temperature", "program/lms/ask.py",
        "lm.kwargs, question.inputs",
        "question.inputs",
        "test_ask.py::test_a_kept_answer_is_not_given_to_a_program_with_other_demos_or_settings",
    ),
    Fault("one-question-paid-twice", "program/lms/ask.py",
        "    with single_flight(key):  # another",
        "    if True:  # another",
        "test_ask.py::test_equal_questions_asked_at_once_go_out_once_though_each_built_its_own_signature",
    ),
    Fault("facts-for-a-language-model", "program/lms/ask.py",
        "if traits.embedded:",
        "if facts:",
        "test_endpoints.py::test_what_the_embedded_expert_is_told_reaches_no_language_model",
    ),
    Fault("an-added-output-spoils-the-answer", "program/lms/ask.py",
        "_readable(asked, form), inputs",
        "asked, inputs",
        "test_ask.py::test_an_output_that_nobody_needs_may_stay_unanswered",
    ),
    Fault("advice-of-refine-lost", "program/lms/ask.py",
        "as_it_is = question.signature if _is_ours(question.traits) else asked",
        "as_it_is = question.signature",
        "test_dspy_user.py::test_refine_takes_the_advice_of_a_language_model",
    ),
    Fault("demos-lack-an-output-unsaid", "program/lms/ask.py",
        "            _warn_of_demos(",
        "            (lambda *_, **_named: None)(",
        "test_ask.py::test_demos_that_lack_an_output_are_said_once_and_shown_where_nobody_needs_it",
    ),
    # Many images: flags, the gate, the table, and going on after a kill
    Fault("exit-not-sure-first", "program/batch/command.py",
        '    if tally.counts["below"] or tally.counts["faulty"]:\n        return EXIT_BELOW_MINIMUM\n    if '
        'tally.counts["not sure"]:\n        return EXIT_NOT_SURE\n',
        '    if tally.counts["not sure"]:\n        return EXIT_NOT_SURE\n    if tally.counts["below"] or '
        'tally.counts["faulty"]:\n        return EXIT_BELOW_MINIMUM\n',
        "test_batch.py::test_an_image_that_surely_fails_the_gate_fails_it_beside_one_that_is_not_sure",
    ),
    Fault("a-score-at-the-minimum-fails", "program/running/row.py",
        'return "below" if row.score < minimum else "above"',
        'return "below" if row.score <= minimum else "above"',
        "test_words.py::test_a_score_at_the_minimum_passes_the_gate",
    ),
    Fault("sure-by-the-upper-end", "program/running/row.py",
        "max(row.score - (row.low or row.score), (row.high or row.score) - row.score)",
        "(row.high or row.score) - row.score",
        "test_words.py::test_a_score_near_an_end_of_the_scale_is_no_surer_than_its_longer_side",
    ),
    Fault("compare-without-its-reference", "program/batch/command.py",
        "compare_images(program_from(arguments, settings), first, second, reference)",
        "compare_images(program_from(arguments, settings), first, second)",
        "test_batch.py::test_a_real_comparison_of_a_blurred_copy",
    ),
    Fault("workers-flag-ignored", "program/batch/command.py",
        "workers=arguments.workers, progress=not arguments.json,",
        "workers=1, progress=not arguments.json,",
        "test_batch.py::test_so_many_images_are_judged_at_once_as_were_asked_for",
    ),
    Fault("question-of-a-folder-ignored", "program/batch/command.py",
        '"query": self._query or asked["query"]}',
        '"query": asked["query"]}',
        "test_batch.py::test_a_question_is_put_of_each_image_of_a_folder",
    ),
    Fault("heatmap-of-ignored", "program/batch/command.py",
        "program.heatmap(image, reference, arguments.heatmap_of)",
        "program.heatmap(image, reference)",
        "test_words.py::test_region_and_heatmap_from_the_command",
    ),
    Fault("region-flag-ignored", "program/batch/command.py",
        "regions=dict(arguments.region) or None",
        "regions=None",
        "test_words.py::test_region_and_heatmap_from_the_command",
    ),
    Fault("formula-as-it-stands", "program/common/cells.py",
        "if _GUARDED.match(shown):",
        "if False:",
        "test_batch.py::test_cells_are_no_formulas",
    ),
    Fault("csv-group-split-swapped", "program/running/row.py",
        '"group": request.group,\n        "split": request.split,',
        '"group": request.split,\n        "split": request.group,',
        "test_batch.py::test_what_would_run_as_a_formula_has_an_apostrophe_and_is_read_without",
    ),
    Fault("columns-in-another-order", "program/running/row.py",
        "class Row(Columns, RowStart):",
        "class Row(RowStart, Columns):",
        "test_batch.py::test_a_folder_becomes_a_table_and_no_image_is_lost",
    ),
    Fault("a-row-without-its-reasons", "program/running/row.py",
        '"reasoning": result.summary or str(result.final_answer)',
        '"reasoning": str(result.final_answer)',
        "test_batch.py::test_a_folder_becomes_a_table_and_no_image_is_lost",
    ),
    Fault("resume-ignores-change", "program/running/journal.py",
        'if entry["stamp"] not in (None, request.stamp()):',
        'if entry["stamp"] is ...:',
        "test_journal.py::test_an_image_is_judged_again_where_it_or_its_reference_changed",
    ),
    Fault("stamp-without-reference", "program/common/request.py",
        "for place in (self.image, self.reference):",
        "for place in (self.image,):",
        "test_journal.py::test_an_image_is_judged_again_where_it_or_its_reference_changed",
    ),
    Fault("errors-not-tried-again", "program/running/journal.py",
        'if row.status == "error" or row.is_unread:',
        "if row.is_unread:",
        "test_journal.py::test_a_request_that_failed_is_tried_again",
    ),
    Fault("resume-repeats", "program/running/runner.py",
        "row = None if journal is None else journal.find(request, place)",
        "row = None",
        "test_batch.py::test_a_resumed_run_judges_only_what_is_open",
    ),
    # Gallery
    Fault("gallery-single-link", "program/gallery/choice.py",
        'linkage="complete"',
        'linkage="single"',
        "test_gallery.py::test_no_picture_joins_a_group_unless_it_is_near_to_all_in_it",
    ),
    Fault("gallery-timeless-both", "program/gallery/choice.py",
        "timeless = (first < 0) | (second < 0)",
        "timeless = (first < 0) & (second < 0)",
        "test_gallery.py::test_a_picture_without_a_time_is_grouped_by_its_look_with_one_that_has_a_time",
    ),
    Fault("gallery-mean-stop", "program/gallery/choice.py",
        "np.abs(stops - np.median(stops))",
        "np.abs(stops - np.mean(stops))",
        "test_gallery.py::test_one_black_frame_of_a_burst_does_not_make_a_darker_picture_its_best",
    ),
    Fault("gap-between-bursts-off-by-one", "program/images/stated.py",
        ".total_seconds() > gap_s",
        ".total_seconds() >= gap_s",
        "test_gallery.py::test_a_picture_that_was_taken_just_at_the_gap_is_of_the_same_burst",
    ),
    # Service and agents' tools: who may ask what, and what it learns
    Fault("path-escapes-its-folder", "program/service/requests.py",
        "if self._local or path.is_relative_to(folder):",
        "if True:",
        "test_serving.py::test_paths_are_read_inside_the_allowed_folders_only",
    ),
    Fault("redirects-followed", "program/service/requests.py",
        "follow_redirects=False",
        "follow_redirects=True",
        "test_serving.py::test_urls_are_fetched_from_allowed_hosts_only",
    ),
    Fault("proxy-asked-for-own-hosts", "program/service/requests.py",
        "httpx.Client(trust_env=False",
        "httpx.Client(trust_env=True",
        "test_serving.py::test_no_proxy_of_the_environment_learns_what_is_fetched",
    ),
    Fault("token-open-routes-by-prefix", "program/service/guard.py",
        'not path.startswith("/assets/")',
        'not path.startswith("/a")',
        "test_serving.py::test_token_is_asked_for_everywhere_but_on_the_open_routes",
    ),
    Fault("cross-site-forms-answered", "program/service/guard.py",
        'if method not in {"GET", "HEAD"} and headers',
        "if False and headers",
        "test_serving.py::test_pages_of_other_sites_may_not_ask",
    ),
    Fault("providers-words-told-to-clients", "program/service/requests.py",
        "no answer ({type(error).__name__});",
        "no answer ({error});",
        "test_serving.py::test_program_errors_are_422_and_faults_of_the_model_502",
    ),
    Fault("requests-images-pile-up", "program/service/assessing.py",
        "            with one_image():\n                return work(job)",
        "            return work(job)",
        "test_serving.py::test_what_was_sent_is_forgotten",
    ),
    Fault("one-place-too-many", "program/service/assessing.py",
        "if self.busy >= limit:",
        "if self.busy > limit:",
        "test_serving.py::test_more_requests_than_places_get_503_and_the_places_come_back",
    ),
    Fault("body-limit-in-megabytes", "program/service/guard.py",
        "self.most_each, self.timeout_s = int(settings.max_body_mb * 2**20)",
        "self.most_each, self.timeout_s = int(settings.max_body_mb * 10**6)",
        "test_serving.py::test_body_limit_holds_with_and_without_a_declared_length",
    ),
    Fault("tokens-counted-as-output", "program/service/assessing.py",
        'self.tokens.labels("input").inc(usage.input_tokens)',
        'self.tokens.labels("output").inc(usage.input_tokens)',
        "test_serving.py::test_health_version_metrics_and_schema",
    ),
    Fault("service-compares-without-reference", "program/service/assessing.py",
        "first.image, second.image, first.reference)",
        "first.image, second.image)",
        "test_serving.py::test_two_images_are_compared_against_the_reference_that_was_sent",
    ),
    Fault("mcp-pair-reference-wrong", "program/service/agents.py",
        "(self._job(image_a, reference), self._job(image_b))",
        "(self._job(image_a), self._job(image_b))",
        "test_mcp.py::test_a_comparison_judges_both_images_against_the_reference",
    ),
    Fault("mcp-recursive-ignored", "program/service/agents.py",
        "recursive=recursive)",
        "recursive=False)",
        "test_mcp.py::test_a_folder_below_that_cannot_be_read_is_a_row_with_its_error",
    ),
    # The tests' own records of whole runs
    Fault("scenario-without-its-errors", "tests/scenarios.py",
        '"err": err.getvalue(), "runs"',
        '"err": "", "runs"',
        "test_scenarios.py::test_a_record_holds_all_that_the_run_left_and_is_made_once",
    ),
    Fault("scenario-read-while-it-runs", "tests/scenarios.py",
        'with path_lock(self.root / f"{name}.lock"):',
        "if True:",
        "test_scenarios.py::test_a_record_holds_all_that_the_run_left_and_is_made_once",
    ),
]  # fmt: skip
"""Some faults of every room. Take one of each kind that a change to a room could bring about."""


if __name__ == "__main__":
    sys.exit(main())
