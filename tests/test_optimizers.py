"""Optimizers without a wire: objectives, lessons, searches, fitted fusion, verdicts, and what may not happen."""

import itertools
import json
import math
import re
import shutil

import dspy
import numpy as np
import pytest
from PIL import Image
from scipy import stats

from data.manifest import Sample, read_manifest
from optimizers.compiling import compile_program
from optimizers.demos import LabelledDemo, choose_demos, distortion_truth, labelled_demos
from optimizers.examples import collect_examples
from optimizers.job import prepare_job
from optimizers.objectives import Objective, distortion_agreement
from optimizers.plan import call_plan
from optimizers.recipes import recipe_named
from optimizers.recipes.fits import fitted_curve
from optimizers.student import EvidenceReplay, Student, optimized_predictors
from program.agent.assessment import Assessment
from program.agent.loop import AgenticIQA
from program.agent.saving import load, program_sha256, save, schema_sha256
from program.agent.state import AssessmentState, ExecutorOutput, Finding
from program.common.errors import DataError, InputError
from program.common.settings import Settings, load_settings
from program.compile import main as compile_command
from program.evaluation import evaluate
from program.fusion import ScoreFusion
from program.fusion.scores import FittedFusion
from program.images.store import IMAGES
from program.lms.ask import with_references
from signatures.schemas import Plan

pytestmark = pytest.mark.usefixtures("undrawn", "unlogged", "untracked", "untraced", "coarse")

SMALL = {"compile": {"rerank": 2, "baselines": False}}


@pytest.fixture
def paid() -> Settings:
    """Settings with a language model in every role, which nothing is asked of."""
    return load_settings().with_model("openai/small-vlm", "http://127.0.0.1:9/v1")


def assessed(answer: float | str = 3.0, *, findings: tuple[tuple[str, str], ...] = (), repairs: tuple[str, ...] = ()):
    plan = Plan(query_type="IQA", query_scope=["Global"], distortion_detection=True, distortion_analysis=True,
                tool_selection=True, tool_execute=True)  # fmt: skip
    found = [Finding(type=t, severity=s, explanation="Seen.") for t, s in findings]
    evidence = ExecutorOutput(distortion_analysis={"Global": found}, quality_scores={"Global": {"Blurs": ("VIF", 2.0)}})
    state = AssessmentState(
        query="Rate it.", image_path="a.png", plan=plan, plan_repairs=list(repairs), executor_evidence=evidence
    )
    levels = {1: 0.0, 2: 0.0, 3: 0.5, 4: 0.5, 5: 0.0} if isinstance(answer, float) else None
    return Assessment(
        final_answer=answer, quality_reasoning="Because.", status="ok", state=state, level_probabilities=levels
    )


def test_agreement_falls_with_the_distance_of_scores() -> None:
    objective = Objective()
    agreements = [objective.score(dspy.Example(quality=4.0), assessed(score)) for score in (4.0, 2.0, 1.0)]
    assert agreements == [1.0, 0.5, 0.25]


def test_the_gate_is_a_verdict_not_the_truth_of_a_small_number() -> None:
    objective = Objective()
    far = dspy.Example(id="a", quality=4.9, query="q")
    assert 0 < objective.score(far, assessed(1.5)) < 0.2
    assert objective.passes(far, assessed(1.5)) is False
    assert objective.passes(far, assessed(4.5)) is True
    assert objective.passes(dspy.Example(id="a", answer="B"), assessed("A")) is False


def test_parts_are_weighted_over_what_is_known() -> None:
    objective = Objective({"answer": 1.0, "plan": 0.5, "distortion": 0.5})
    truth = {"query_type": "IQA", "query_scope": ["Global"], "distortion_source": "inferred"}
    example = dspy.Example(id="a", quality=3.0, plan_by_rule=truth, distortion_truth={"Blurs": "severe"})
    answer = assessed(3.0, findings=(("Blurs", "moderate"), ("Noise", "slight")), repairs=("tool_execute: a -> b",))
    parts = objective.parts(example, answer)
    assert parts["plan"].agreement == pytest.approx(8 / 9)
    assert parts["distortion"].agreement == pytest.approx(2 / 3 * 0.75)
    expected = (1.0 + 0.5 * 8 / 9 + 0.5 * 0.5) / 2
    assert objective.score(example, answer) == pytest.approx(expected)
    assert set(objective.parts(dspy.Example(id="b", quality=3.0), answer)) == {"answer"}
    assert objective.score(example, None) == 0.0


def test_distortions_agree_by_f1_and_distance_in_severity() -> None:
    assert distortion_agreement({}, {}) == 1.0
    assert distortion_agreement({"Blurs": "none"}, {}) == 1.0
    assert distortion_agreement({"Noise": "slight"}, {"Blurs": "slight"}) == 0.0
    both = distortion_agreement({"Noise": "slight", "Blurs": "extreme"}, {"Blurs": "extreme"})
    assert both == pytest.approx(2 * 1 / (2 + 1))


def test_feedback_says_what_was_wrong_how_far_and_which_evidence_was_nearer() -> None:
    example = dspy.Example(id="a", quality=2.1, distortion_truth={"Noise": "severe"})
    told = Objective({"answer": 1, "distortion": 1}).feedback(example, assessed(3.5, findings=(("Blurs", "slight"),)))
    for words in ("3.50 is 1.40 too high", "people gave 2.10", "VIF 2.00", "the tools were nearer",
                  "missed severe Noise", "slight Blurs, which is not there"):  # fmt: skip
        assert words in told
    only = Objective({"answer": 1, "distortion": 1}).feedback(example, assessed(3.5), role="summarizer")
    assert "missed" not in only


def chosen(values: list[float | str], count: int, seed: int) -> list[int]:
    """Return the places of the demos that are chosen of so many with these values."""
    demos = [LabelledDemo("summarizer.score", str(n), str(n), v, dspy.Example(n=n)) for n, v in enumerate(values)]
    budget = load_settings().optimizers.usual.model_copy(update={"demos": count})
    return [demo.n for demo in choose_demos("summarizer.score", demos, budget, seed)]


@pytest.mark.parametrize("seed", range(5))
def test_sets_of_demos_are_distinct_of_the_asked_size_and_spread_over_scores_and_answers(seed) -> None:
    values = sorted(n / 10 for n in chosen([n / 10 for n in range(80)], 12, seed))
    assert len(set(values)) == 12
    assert all(b - a < 1.4 for a, b in itertools.pairwise(values))
    assert sorted(chosen([n / 10 for n in range(80)], 100, seed)) == list(range(80))
    assert chosen([n / 10 for n in range(80)], 0, seed) == []
    answers = ["yes"] * 12 + ["no"] * 2 + ["cannot tell"]
    places = chosen(answers, 4, seed)
    assert {answers[place] for place in places[:3]} == set(answers)
    assert len(set(places)) == 4


@pytest.mark.parametrize(("quality", "said"), [(1.0, "unusable"), (3.2, "Moderate"), (5.0, "No distortion is visible")])
def test_a_demo_says_what_its_score_means(tmp_path, quality, said) -> None:
    inputs = {"query": "Rate it.", "distortion_analysis": "none"}
    sample = Sample(id="a", image=tmp_path / "a.png", mos=quality)
    (made,) = labelled_demos(sample, dspy.Example(quality=quality), [("summarizer.score", inputs)], None)
    assert said in made.demo.quality_reasoning
    probabilities = made.demo.quality_probs.by_level()
    assert sum(level * p for level, p in probabilities.items()) == pytest.approx(quality)


def test_every_role_gets_demos_from_what_it_was_really_asked(blurred_manifest) -> None:
    program = AgenticIQA(load_settings(overrides={"executor": {"selection": "model"}}))
    samples = [s for s in read_manifest(blurred_manifest) if s.split == "train"][:12]
    found = collect_examples(program, samples, workers=1)
    demos = found.demos
    assert set(demos) >= {"planner.plan", "executor.diagnose", "executor.select_tools", "summarizer.score",
                            "summarizer.answer"}  # fmt: skip
    assert len(demos["planner.plan"]) == len({s.query or "" for s in samples})
    for name, predictor in program.named_predictors():
        for demo in demos.get(name, ()):
            assert all(demo.demo.get(field) is not None for field in predictor.signature.output_fields), name
    score = {demo.sample: demo for demo in demos["summarizer.score"]}
    for sample in samples:
        if sample.task == "scoring":
            stated = score[sample.id].demo.quality_probs.by_level()
            assert sum(level * p for level, p in stated.items()) == pytest.approx(sample.quality, abs=1e-4)
    found = demos["executor.diagnose"][0].demo.findings
    assert [f.type for f in found] == ["Blurs"] or found == []


def test_a_compile_asks_the_very_options_that_an_evaluation_asks(tmp_path, picture, service_program) -> None:
    Image.fromarray(picture(3)).save(tmp_path / "a.png")
    options = {letter: f"option {n}" for n, letter in enumerate("ABCDEFGHIJ")} | {"B": "What?", "C": "A. Yes B. No"}
    sample = Sample(id="q", image=tmp_path / "a.png", query="Which one?", options=options, answer="J")
    program = service_program(script={"final_answer": {"final_answer": "J", "quality_reasoning": "Soft."}})
    found = collect_examples(program, [sample], workers=1)
    (demo,) = found.demos["summarizer.answer"]
    assert demo.demo.quality_reasoning == "People chose J. option 9."
    planned = len(program.engine.asked("plan"))
    student, replayed = (
        Student(program, ("summarizer.answer",), found.gathered),
        EvidenceReplay(program, found.gathered),
    )
    for answer in (student(**found.examples[0].inputs()).assessment, replayed(**found.examples[0].inputs())):
        assert (answer.final_answer, answer.status, answer.state.options) == ("J", "ok", options)
    assert len(program.engine.asked("plan")) == planned, "the evidence at hand was not found"
    assert all("B. What?\nC. A. Yes B. No\n" in program.engine.text(r) for r in program.engine.asked("final_answer"))


def test_the_data_says_which_distortion_is_there(blurred_manifest) -> None:
    sample = next(iter(read_manifest(blurred_manifest)))
    assert distortion_truth(sample) == {"Blurs": "none"}
    assert distortion_truth(sample.model_copy(update={"mos": 2.0})) == {"Blurs": "severe"}
    assert distortion_truth(sample.model_copy(update={"distortion": "wn", "mos": 1.0})) == {"Noise": "extreme"}
    for name, category in (("fastfading", "Compression"), ("mean_shift", "Brightness change")):
        named = sample.model_copy(update={"distortion": name, "mos": 3.0})
        assert set(distortion_truth(named)) == {category}
    for name in ("authentic", "color_block"):
        assert distortion_truth(sample.model_copy(update={"distortion": name})) is None
    assert distortion_truth(sample.model_copy(update={"metadata": {"identity": True}})) == {}


def test_inlined_images_become_references_to_the_same_bytes(tmp_path, picture) -> None:
    Image.fromarray(picture(3)).save(tmp_path / "a.png")
    inlined = dspy.Image.from_path(str(tmp_path / "a.png"))
    demo = with_references({"image": inlined, "query": "plain text"})
    assert demo["image"].url == IMAGES.add(tmp_path / "a.png").url
    assert demo["query"] == "plain text"


def test_optimizers_see_the_taught_predictors_and_no_other() -> None:
    program = AgenticIQA(load_settings())
    asked = {"planner.plan", "executor.diagnose", "executor.select_tools", "summarizer.explain"}
    names = optimized_predictors(program, ("executor", "summarizer"), ("scoring",), asked)
    assert names == ("executor.diagnose", "executor.select_tools", "summarizer.score")
    student = Student(program, names)
    assert [n for n, _ in student.named_predictors()] == list(names)


def test_a_resumed_compile_goes_by_the_settings_that_it_is_given(fifteen_photographs, tmp_path) -> None:
    def job(eta: float, **given):
        settings = load_settings(overrides={**SMALL, "fusion": {"eta": eta}})
        return prepare_job(settings, str(fifteen_photographs), "none", tmp_path / "out", **given)

    with pytest.raises(InputError, match="no compile was begun there; start it without --resume"):
        compile_program(job(1.0, resume=True))
    compile_program(job(1.0))
    assert compile_program(job(3.0, resume=True)).program.resources.fusion.eta == 3.0


def test_the_seed_decides_which_samples_are_drawn(blurred_manifest, tmp_path) -> None:
    def drawn(seed):
        settings = load_settings(overrides={**SMALL, "seed": seed, "compile": {"train_scoring": 6, "train_mcq": 2}})
        job = prepare_job(settings, str(blurred_manifest), "none", tmp_path / "out")
        return [sample.id for sample in job.samples("train")]

    assert drawn(0) == drawn(0) != drawn(1)
    assert len(drawn(1)) == 8


def test_recommends_the_uncompiled_program_when_nothing_helped(blurred_manifest, tmp_path) -> None:
    result = compile_program(
        prepare_job(load_settings(overrides=SMALL), str(blurred_manifest), "none", tmp_path / "out")
    )
    assert (result.chosen, result.verdict.helped) == ("uncompiled", False)
    assert result.verdict.text == (
        "The uncompiled program is kept, and recommended: no candidate was better on validation."
    )
    assert "Nothing changed" in (tmp_path / "out" / "diff.md").read_text("utf-8")
    assert program_sha256(load(tmp_path / "out")) == program_sha256(AgenticIQA())
    # What chooses is validation alone: never what is tested.
    figures = {split: evaluate(AgenticIQA(), blurred_manifest, split=split, progress=False).figures
               for split in ("validation", "test")}  # fmt: skip
    assert result.validation["uncompiled"]["plcc"] == figures["validation"]["plcc"].value
    assert result.uncompiled.figures["plcc"] == figures["test"]["plcc"]
    assert figures["validation"]["plcc"] != figures["test"]["plcc"]


@pytest.mark.parametrize(
    ("optimizer", "named", "message"),
    [
        *(
            (name, {}, f"optimizer '{name}': gives demos or instructions, of which the embedded expert reads a rubric")
            for name in ("labeled", "bootstrap", "random-search", "mipro", "gepa")
        ),
        (None, {"demos": 8}, "--demos: has a use in bootstrap, labeled, mipro, random-search; give one of"),
        ("finetune", {"teacher_lm": "openai/x"}, "--teacher-lm: has a use in bootstrap, random-search"),
        ("gepaa", {}, r"optimizer 'gepaa': unknown \(did you mean 'gepa'"),
        ("bootstrap", {"teacher_lm": "labb"}, "model 'labb': not of the form provider/model"),
        ("labeled", {"roles": "planner,judge"}, "role 'judge': unknown"),
    ],
)
def test_refuses_early_what_it_lacks(blurred_manifest, tmp_path, optimizer, named, message) -> None:
    with pytest.raises(InputError, match=message):
        prepare_job(load_settings(), str(blurred_manifest), optimizer, tmp_path / "out", **named)
    assert not (tmp_path / "out").exists()


def test_a_recipe_that_takes_no_demos_from_a_teacher_is_given_none(blurred_manifest, tmp_path, paid) -> None:
    message = "--teacher-lm: has a use in bootstrap, random-search; give one of them"
    with pytest.raises(InputError, match=message):
        prepare_job(paid, str(blurred_manifest), "labeled", tmp_path / "out", teacher_lm="openai/x")


def test_a_named_service_teaches(blurred_manifest, tmp_path) -> None:
    service = {"api_base": "http://127.0.0.1:9/v1", "model": "small-vlm"}
    settings = load_settings(overrides={"models": {"backends": {"lab": service}}}).with_model("lab")
    job = prepare_job(settings, str(blurred_manifest), "bootstrap", tmp_path / "out", teacher_lm="lab")
    teacher = job.teacher(("summarizer",))
    assert teacher.program.resources.lm("summarizer").model.endswith("/small-vlm")


@pytest.mark.parametrize("leak", ["group", "reference", "image", "copy"])
def test_a_photograph_in_two_splits_is_refused_before_anything_is_taught(blurred_manifest, tmp_path, leak) -> None:
    lines = [json.loads(line) for line in blurred_manifest.read_text("utf-8").splitlines()]
    train, test = (next(line for line in lines if line["split"] == split) for split in ("train", "test"))
    shutil.copy(tmp_path / train["image"], tmp_path / "another name.png")
    if leak == "group":
        test["group"] = train["group"]
    elif leak == "reference":
        train["reference"] = test["reference"] = "another name.png"
        del train["group"], test["group"]
    else:
        test["image"] = train["image"] if leak == "image" else "another name.png"
    blurred_manifest.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    with pytest.raises(DataError, match=r"is in train and test"):
        prepare_job(load_settings(), str(blurred_manifest), "none", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_images_that_are_gone_are_told_before_a_compile(blurred_manifest, tmp_path, capsys) -> None:
    lines = [json.loads(line) for line in blurred_manifest.read_text("utf-8").splitlines()]
    splits = {name: [line for line in lines if line["split"] == name] for name in ("train", "validation", "test")}
    gone = {name: splits[name][0]["image"] for name in ("train", "test")}
    for name in gone.values():
        (tmp_path / name).unlink()
    command = ["--data", str(blurred_manifest), "--optimizer", "none", "--out", str(tmp_path / "out"), "--dry-run"]
    assert compile_command(command) == 0
    told = capsys.readouterr().err.splitlines()
    for split, shown in (("train", "training"), ("test", "test")):
        count = len(splits[split])
        lost = sum(line["image"] == gone[split] for line in splits[split])
        (line,) = [line for line in told if f"{count - lost} of {count} {shown} samples usable" in line]
        assert repr(str(tmp_path / gone[split])) in line
    assert not any("validation samples usable" in line for line in told)

    job = prepare_job(load_settings(), str(blurred_manifest), "none", tmp_path / "out")
    assert all(sample.image.name != gone["train"] for sample in job.splits["train"])
    assert len(job.splits["test"]) == len(splits["test"])
    assert len(job.notes) == 2

    for line in splits["validation"]:
        (tmp_path / line["image"]).unlink(missing_ok=True)
    assert compile_command(command) == 2
    assert "0 of " in capsys.readouterr().err


def test_too_few_samples_are_refused_by_name_and_number() -> None:
    with pytest.raises(InputError, match=r"optimizer 'gepa': 1 training sample\(s\); give at least 2"):
        recipe_named("gepa").check_data(1, 5)
    with pytest.raises(InputError, match=r"optimizer 'fusion': 4 scored validation sample\(s\); give at least 10"):
        recipe_named("fusion").check_data(40, 4)
    for name in ("nearest", "fusion", "finetune", "rubric"):
        recipe_named(name).check_data(30, 10)
        with pytest.raises(InputError, match=rf"optimizer '{name}': 29 \w*\s?training sample\(s\); give at least 30"):
            recipe_named(name).check_data(29, 10)


@pytest.mark.spec("issue-46/the-expert-by-any-name")
@pytest.mark.parametrize("way", ["by a backend's name", "given from Python", "set in DSPy"])
def test_the_expert_is_taught_as_such_whatever_it_is_called(blurred_manifest, tmp_path, way) -> None:
    plain = prepare_job(load_settings(), str(blurred_manifest), out=tmp_path / "plain")
    entry = {"mine": {"provider": "perceptual", "model": "expert"}}
    named = load_settings(overrides={"models": {"backends": entry}}).with_model("mine")
    expert = AgenticIQA().resources.lm("summarizer")
    with dspy.context(lm=expert if way == "set in DSPy" else None):
        if way == "by a backend's name":
            job = prepare_job(named, str(blurred_manifest), out=tmp_path / "out")
        else:
            given = expert if way == "given from Python" else None
            settings = load_settings().with_model("openai/gpt-4o")
            job = prepare_job(settings, str(blurred_manifest), out=tmp_path / "out", lm=given)
        assert (job.optimizers, job.roles, job.notes) == (plain.optimizers, plain.roles, plain.notes)
        assert [job.budget(name) for name in job.optimizers] == [plain.budget(name) for name in plain.optimizers]
        assert call_plan(job) == call_plan(plain)
        assert way == "set in DSPy" or job.reflection is None


def test_the_plan_of_an_embedded_compile_is_free(blurred_manifest, tmp_path) -> None:
    plan = call_plan(
        prepare_job(load_settings(overrides=SMALL), str(blurred_manifest), "finetune,fusion", tmp_path / "out")
    )
    assert not plan.paid
    (line,) = plan.lines()
    assert re.fullmatch(r"\d+ images, about \d+ s, free", line)


def test_no_program_is_shown_more_demos_than_were_asked_for(blurred_manifest, tmp_path, paid) -> None:
    def demos(**asked: int) -> int | None:
        job = prepare_job(paid, str(blurred_manifest), "random-search", tmp_path / "out", **asked)
        return job.budget("random-search").demos

    assert (demos(), demos(demos=4)) == (8, 4)


def test_the_usual_recipes_follow_the_data(blurred_manifest, tmp_path) -> None:
    samples = [json.loads(line) for line in blurred_manifest.read_text("utf-8").splitlines()]
    plain = [sample for sample in samples if "mos" in sample]
    asked = {"query": "Is it old?", "options": {"A": "Yes", "B": "No"}, "answer": "A"}
    unscored = ("mos", "mos_std", "distortion")
    questions = [{**{k: v for k, v in each.items() if k not in unscored}, **asked} for each in plain]
    for number, each in enumerate(questions):
        each["id"] = f"old{number}"

    def job(rows, **kinds: str):
        path = blurred_manifest.with_name("kept.jsonl")
        path.write_text("".join(json.dumps({**row, **kinds}) + "\n" for row in rows), "utf-8")
        return prepare_job(load_settings(), str(path), out=tmp_path / "out")

    assert job(plain).optimizers == ("finetune", "fusion")
    assert job([*plain, *questions]).optimizers == ("nearest", "finetune", "fusion")
    assert job(questions).optimizers == ("nearest",)
    assert job(plain, labels="made-up").optimizers == ("rubric",)


@pytest.mark.parametrize("labels", ["people", "made-up"])
def test_of_fewer_than_30_labels_the_expert_compiles_nothing_and_says_so_in_a_line(
    blurred_manifest, tmp_path, capsys, labels
) -> None:
    samples = [json.loads(line) for line in blurred_manifest.read_text("utf-8").splitlines()]
    few = [each for each in samples if "mos" in each and (each["split"] != "train" or int(each["group"]) < 40)]
    train = sum(each["split"] == "train" for each in few)
    blurred_manifest.write_text("".join(json.dumps({**each, "labels": labels}) + "\n" for each in few), "utf-8")
    folder = tmp_path / "out"
    config = tmp_path / "small.yaml"
    config.write_text("compile: {baselines: false}\ntracking: {traces: 0}\n", "utf-8")
    command = ["--data", str(blurred_manifest), "--out", str(folder), "--config", str(config), "--json"]
    assert compile_command(command) == 0
    captured = capsys.readouterr()
    line = f"nothing is compiled: the embedded expert learns from 30 scored training samples, and there are {train}"
    assert json.loads(captured.out)["notes"] == [line]
    assert captured.err.splitlines()[0] == line
    assert json.loads(captured.out)["chosen"] == "uncompiled"
    assert program_sha256(load(folder)) == program_sha256(AgenticIQA())


def test_a_fitted_fusion_is_neutral_by_default_and_keeps_the_order(rng: np.random.Generator) -> None:
    plain, fitted = ScoreFusion(), FittedFusion(ScoreFusion())
    curve = fitted_curve("isotonic", rng.uniform(1, 5, 200), rng.uniform(2, 4, 200))
    bent = FittedFusion(ScoreFusion(), eta=0.5, model_weight=2.0, curve=[(1, 1.5), (3, 2), (5, 4.5)])
    given = [([float(t)], dict(enumerate(rng.dirichlet(np.ones(5)), 1))) for t in rng.uniform(1, 5, 50)]
    assert [fitted.fuse_scores(*g) for g in given] == [plain.fuse_scores(*g) for g in given]
    unbent = FittedFusion(ScoreFusion(), eta=0.5, model_weight=2.0)
    ranks = [stats.rankdata([f.fuse_scores(*g) for g in given]).tolist() for f in (bent, unbent)]
    assert ranks[0] == ranks[1]
    for tools, belief in given[:5]:
        masses = {c: math.exp(-0.5 * (tools[0] - c) ** 2) * belief[c] ** 2 for c in range(1, 6)}
        expected = sum(c * m for c, m in masses.items()) / sum(masses.values())
        assert unbent.fuse_scores(tools, belief) == pytest.approx(expected, rel=1e-9)
    assert all(a[1] < b[1] for a, b in itertools.pairwise(curve))
    with pytest.raises(ValueError, match="must increase"):
        FittedFusion(ScoreFusion(), curve=[(1, 3), (5, 2)])


@pytest.mark.parametrize("kind", ["line", "logistic", "isotonic"])
def test_a_fitted_map_comes_nearer_to_people(kind, rng: np.random.Generator) -> None:
    fused = rng.uniform(2, 4, 300)
    truth = 1 + 4 / (1 + np.exp(-2.5 * (fused - 3))) + rng.normal(0, 0.1, 300)
    mapped = [FittedFusion(ScoreFusion(), curve=fitted_curve(kind, fused, truth)).map_score(x) for x in fused]
    assert np.mean(np.abs(mapped - truth)) < 0.5 * np.mean(np.abs(fused - truth))


def test_a_fitted_fusion_is_saved_with_the_program_and_covered_by_its_hashes(tmp_path) -> None:
    program = AgenticIQA()
    plain = program_sha256(program), schema_sha256(program)
    program.summarizer.fitted = FittedFusion(ScoreFusion(), eta=0.5, model_weight=2.0, curve=[(1, 1.5), (5, 4.5)])
    assert program_sha256(program) != plain[0]
    assert schema_sha256(program) != plain[1]
    save(program, tmp_path / "p")
    loaded = load(tmp_path / "p")
    assert loaded.summarizer.fitted.to_json() == program.summarizer.fitted.to_json()
    assert loaded.deepcopy().summarizer.fusion.fuse_scores([2.0], None) == program.summarizer.fusion.fuse_scores(
        [2.0], None
    )
    document = json.loads((tmp_path / "p" / "program.json").read_text("utf-8"))
    for wrong in ({"eta": 1}, {**document["fusion"], "eta": -1}, [1, 2]):
        (tmp_path / "p" / "program.json").write_text(json.dumps({**document, "fusion": wrong}), "utf-8")
        with pytest.raises(InputError, match="fusion"):
            load(tmp_path / "p")
