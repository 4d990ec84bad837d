"""What to compile, checked before anything is asked of a model."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias, get_args

import dspy

from data.catalogue import resolve_dataset
from data.manifest import LABELS, Layout, Sample, Split, check_scale, left_out, manifest_sha256, read_manifest
from data.reviews import Opinion, Review, read_lines
from data.splits import FRACTIONS, check_contents, check_leaks, group_of, joined_by_content, plan_folds, plan_splits
from data.tables import note_on
from optimizers.examples import choose_samples
from optimizers.learner import EXPERT, LANGUAGE_MODEL, Learner, learner_of
from optimizers.recipes import Recipe, recipe_named, recipe_names
from optimizers.student import Student, metered_lm
from program.agent.loop import AgenticIQA
from program.agent.resources import ROLES, Resources, lm_of
from program.agent.saving import check_folder, tool_versions
from program.agent.summarizer import AnswerPart
from program.common.console import Console
from program.common.errors import InputError, did_you_mean
from program.common.files import Place
from program.common.settings import PLACES, RecipeSettings, Settings
from program.common.text import counted
from program.evaluation.intervals import MIN_GROUPS, Figure
from program.evaluation.publishing import labels_of, origin_params
from program.evaluation.record import Dataset
from program.lms.traits import known_traits

LEAST_LABELS, FOLDS = 20, 5
"""Labels without a split that can show a gain, and the folds that they are divided into."""
_ONE_SPLIT, _TAUGHT = 100, (0.75, 0.25, 0.0)
"""Labels from which one split does, and the shares to train and to choose on of what no fold holds back."""
_CHOSEN_IN_FOLDS, CHOICE_FOLDS = 300, 10
"""Labels up to which a fit is chosen in folds of all that are not tested, and how many folds: a quarter of them is too
few to choose by, and is missed by the fit."""
_SPLITS = get_args(Split)
_UNSHOWN = {*PLACES, "serve", "optimizers", "seed"}


Splits: TypeAlias = dict[str, list[Sample]]


@dataclass(frozen=True)
class Job:
    """What to compile: settings, the data by split, the optimizers in turn, and where the program goes."""

    settings: Settings
    data: str
    optimizers: tuple[str, ...]
    roles: tuple[str, ...]
    out: Path
    dataset: Dataset
    splits: Splits
    """Where there are folds, "test" is all of the samples."""
    folds: tuple[Splits, ...] = ()
    """Data that is compiled on all but one fold in turn, so that each label is tested once; empty for one split."""
    kept: str | None = None
    """Why the data can show no gain, so that nothing is compiled; None where it can."""
    teacher_lm: str | None = None
    demos: int | None = None
    """Demos of the Summarizer's questions, instead of the budget's."""
    resume: bool = False
    force: bool = False
    """Teach scores that run against the program's, which else are taken for upside down."""
    notes: tuple[str, ...] = ()
    """What of the data cannot be used."""
    doubt: str = ""
    """A warning that the scores may be on another scale."""
    review: str | None = None
    """The file of second opinions that changed labels."""
    share: float = 1.0
    """Of what searches may spend, as few model calls are allowed."""
    lm: dspy.BaseLM | None = field(default=None, compare=False)
    """A model given from Python, which plays every role."""

    @cached_property
    def learner(self) -> Learner:
        """What plays the roles to optimize."""
        resources = Resources(self.settings, self.lm)
        return learner_of(resources.known_traits(role) for role in ROLES if role in self.roles)

    @property
    def optimizer(self) -> str:
        """The optimizers' names, joined by commas."""
        return ",".join(self.optimizers)

    @property
    def needs_answers(self) -> bool:
        """Whether a recipe learns from what the uncompiled program answers on train; else that costs no call."""
        return _rewrites(map(recipe_named, self.optimizers)) or not self.learner.is_paid

    @property
    def answer_part(self) -> AnswerPart:
        """How much of an answer is asked for where none is learned from."""
        return "whole" if self.needs_answers else "decision"

    def budget(self, name: str) -> RecipeSettings:
        """Return what a recipe may spend."""
        budget = self.settings.optimizers.model.get(name, self.settings.optimizers.usual)
        changed = {}
        if self.demos is not None:
            changed["demos"] = self.demos
        if self.share < 1:
            for key in recipe_named(name).scales:
                whole = getattr(budget, key)
                changed[key] = min(whole, max(2, round(self.share * whole)))
        return budget.model_copy(update=changed)

    def samples(self, split: str, recipes: Sequence[str] = ()) -> list[Sample]:
        """Return the samples of train or validation that are drawn by the seed.

        Of train those beyond as well that one of the recipes learns from, as it takes all.
        """
        chosen = self.settings.compile
        scoring, mcq = (getattr(chosen, f"{split}_{task}") for task in ("scoring", "mcq"))
        if split == "train":
            takes = {recipe_named(name).takes_all for name in recipes}
            scoring, mcq = None if "scores" in takes else scoring, None if "answers" in takes else mcq
        return choose_samples(self.splits[split], scoring=scoring, mcq=mcq, seed=self.settings.seed)

    @cached_property
    def measured_ids(self) -> set[str]:
        """The ids of the training samples that only a recipe which takes all learns from: no program runs over them."""
        if self.folds or self.is_chosen_in_folds:  # few labels, and each fold draws other samples for the recipes
            return set()
        return {s.id for s in self.samples("train", self.optimizers)} - {s.id for s in self.samples("train")}

    @property
    def _untested(self) -> list[Sample]:
        return [*self.samples("train", self.optimizers), *self.samples("validation")]

    @property
    def taught(self) -> list[Sample]:
        """The samples that the program which is saved learns from."""
        return self._untested if self.is_chosen_in_folds else self.samples("train", self.optimizers)

    @cached_property
    def is_chosen_in_folds(self) -> bool:
        """Whether candidates are fits without model calls, of labels so few that folds of them all choose."""
        samples = self._untested
        is_fit = self.kept is None and not self.learner.is_paid and not _rewrites(map(recipe_named, self.optimizers))
        return is_fit and len(samples) <= _CHOSEN_IN_FOLDS and _groups(samples) >= MIN_GROUPS

    def in_choice_folds(self) -> tuple["Job", tuple["Job", ...]]:
        """Return the job that fits all labels of train and validation, and one for each fold of them, its "test".

        Those that a fit holds back stay in "validation" as well.
        """
        samples, divisions = self._untested, []
        for rest, held in _by_fold(joined_by_content(samples)[0], CHOICE_FOLDS, self.settings.seed):
            kept_back = _by_plan(rest, _TAUGHT, self.settings.seed)["validation"]
            divisions.append({"train": rest, "validation": kept_back, "test": held})
        whole = replace(self, splits={**self.splits, "train": samples}, folds=())
        return whole, tuple(replace(self, splits=splits, folds=()) for splits in divisions)

    @cached_property
    def reflection(self) -> dspy.BaseLM | None:
        """The model that writes instructions: the settings', else the Summarizer's; None where that one reads none."""
        role, summarizer = self.settings.models.reflection, self.settings.models.summarizer
        own_lm = self.lm if role is None else None
        if role is None:
            sampling = {"temperature": 1.0, "max_tokens": max(summarizer.max_tokens, 8000)}
            role = summarizer.model_copy(update=sampling)
        lm = own_lm.copy(temperature=1.0) if own_lm is not None else lm_of(role, cache_dir=self.settings.kept_dir)
        traits = known_traits(lm)
        if "instructions" not in learner_of([traits]).takes:
            return None
        if own_lm is None and not traits.takes_references:
            raise InputError(
                f"reflection model {role.backend!r}: is reached through LiteLLM, which cannot be shown the images; "
                "give one with --reflection-lm that DSPy speaks to itself, as openai/gpt-4o"
            )
        return metered_lm(lm)

    def teacher(self, names: Sequence[str]) -> Student | None:
        """Return the program that a student's demos are bootstrapped from, or None without a teacher."""
        lm = self.teacher_lm
        return None if lm is None else Student(AgenticIQA(self.settings.with_model(lm)), names)

    def params(self) -> dict[str, Any]:
        """Return what tells this compile from others, in the few words of its MLflow run."""
        samples = [*self.splits["train"], *self.splits["validation"], *self.splits["test"]]
        return {
            **origin_params(self.dataset), "labels": labels_of(samples), "seed": self.settings.seed,
            "sizes": ", ".join(f"{name} {len(members)}" for name, members in self.splits.items()),
            "optimizer": self.optimizer, "roles": ",".join(self.roles),
        }  # fmt: skip

    def all_settings(self) -> dict[str, Any]:
        """Return what repeats this compile."""
        return {
            "data": self.data, "manifest_sha256": self.dataset.manifest_sha256, "folds": len(self.folds),
            "review": self.review,
            "seed": self.settings.seed, "optimizers": self.optimizers, "roles": self.roles, "teacher": self.teacher_lm,
            "budgets": {name: self.budget(name).model_dump() for name in self.optimizers}, "resume": self.resume,
            "settings": self._shown_settings(),
        }  # fmt: skip

    def context(self, program: AgenticIQA) -> dict[str, Any]:
        """Return whose results these are, for records."""
        models = {role: program.resources.lm(role).model for role in ROLES}
        tools = tool_versions(program)
        return {"models": models, "optimizer": self.optimizer, "tools": tools, "settings": self._shown_settings()}

    def _shown_settings(self) -> dict[str, Any]:
        return self.settings.model_dump(mode="json", exclude=_UNSHOWN)


def prepare_job(
    settings: Settings, data: str, optimizer: str | None = None, out: Path | None = None, *,
    roles: str | Sequence[str] | None = None, teacher_lm: str | None = None, demos: int | None = None,
    resume: bool = False, force: bool = False, lm: dspy.BaseLM | None = None,
    console: Console | None = None, layout: Layout | None = None, review: Path | None = None,
) -> Job:  # fmt: skip
    """Return the job with data, read by `layout`, and folder checked; `optimizer` names recipes in turn, by commas.

    Second opinions of the file `review` change what is taught and chosen on, never the test. Nothing is asked of a
    model. Raises InputError or DataError for what cannot be used.
    """
    resources = Resources(settings, lm)
    request = optimizer or settings.compile.optimizer
    recipes = _recipes(request or "")
    chosen = roles if roles is not None else settings.compile.roles
    usual = EXPERT if resources.answers_alone else learner_of([resources.known_traits("summarizer")])
    optimized = _roles(chosen, usual.roles)
    if resources.answers_alone and optimized != ("summarizer",):
        mend = "give --roles summarizer, or leave --score-only out"
        raise InputError(f"roles {', '.join(optimized)}: --score-only asks a model for answers alone; {mend}")
    out = out or settings.programs_dir / Path(data).stem
    job = Job(
        settings, data, tuple(recipe.name for recipe in recipes), optimized, out, Dataset(name=data), {},
        teacher_lm=teacher_lm, demos=demos, resume=resume, force=force, lm=lm,
    )  # fmt: skip
    _check_recipes(job, recipes)
    check_folder(out)
    manifest = resolve_dataset(data, settings.cache_dir, progress=console is not None)
    opinions = read_lines(review, Opinion) if review is not None else []
    job = _divided(job, manifest, replace(layout or Layout(), remote=settings.images.remote))
    if review is not None and job.kept is None:
        job = _reviewed(job, opinions, review)
    # Whose labels these are: people's where any is.
    judge = min(sample.judge for sample in chain(*job.splits.values()))
    if request is None:
        recipes = _recipes(_usual(job, judge))
    if job.kept is None:
        recipes, job = _with_enough(job, recipes, asked=request is not None)
    notes = job.notes
    if job.kept is not None:
        notes += (f"nothing is compiled: {job.kept}",)
    if console is not None and notes:
        console.print("\n".join(notes), highlight=False, markup=False)
    # Where nothing is held back for a test, each label is tested once all the same.
    split = None if job.folds or job.splits["train"] is job.splits["test"] else "test"
    return replace(
        job, dataset=Dataset(name=data, manifest_sha256=manifest_sha256(manifest), split=split, judge=judge),
        optimizers=tuple(recipe.name for recipe in recipes), notes=notes,
        roles=optimized if chosen is not None or _rewrites(recipes) else ("summarizer",),
    )  # fmt: skip


def _rewrites(recipes: Iterable[Recipe]) -> bool:
    """Return whether recipes change instructions or demos, of any role; else evidence on scores and their fusion."""
    return any(recipe.teaches not in {"evidence", "fusion"} for recipe in recipes)


def _recipes(names: str) -> list[Recipe]:
    return [recipe_named(name.strip()) for name in names.split(",") if name.strip()]


def _check_recipes(job: Job, recipes: Sequence[Recipe]) -> None:
    """Raise InputError where a recipe lacks what it needs, or none has a use for what was given."""
    if job.teacher_lm is not None:
        lm_of(job.settings.with_model(job.teacher_lm).models.summarizer, cache_dir=None)
    for recipe in recipes:
        recipe.check(job.roles, job.learner, reflection=lambda: job.reflection)
    every = [recipe_named(name) for name in recipe_names()]
    bootstrapping = [recipe.name for recipe in every if recipe.bootstraps]
    showing = [recipe.name for recipe in every if recipe.teaches == "demos"]
    for flag, value, able in (("--teacher-lm", job.teacher_lm, bootstrapping), ("--demos", job.demos, showing)):
        if value is not None and not set(able) & set(job.optimizers):
            mend = "give one of them with --optimizer, or leave it out"
            raise InputError(f"{flag}: has a use in {', '.join(able)}; {mend}")


def _usual(job: Job, judge: str) -> str:
    """Return the names of the recipes where none was asked for."""
    if job.learner is LANGUAGE_MODEL:
        return "nearest,fusion"
    if judge != "people":
        # A rule is learned in words, which carry over; what a few photographs show does not.
        return "rubric"
    if _least_of(job, "train", "mcq") >= recipe_named("nearest").least:
        return "nearest,finetune,fusion"
    return "finetune,fusion"


def _least_of(job: Job, split: str, task: str) -> int:
    """Return how many samples of a task a split has, whatever fold is left out."""
    return min(sum(sample.task == task for sample in part[split]) for part in (job.splits, *job.folds))


def _with_enough(job: Job, recipes: list[Recipe], *, asked: bool) -> tuple[list[Recipe], Job]:
    """Return the recipes that the data has enough for, and the job with notes on those left out or why it is kept.

    Of recipes that were asked for none is left out: InputError says what is missing.
    """
    least_train = min(len(part["train"]) for part in (job.splits, *job.folds))
    scored, validation = _least_of(job, "train", "scoring"), _least_of(job, "validation", "scoring")
    fitting, notes = [], list(job.notes)
    for recipe in recipes:
        count = scored if recipe.fits_scores else least_train
        try:
            recipe.check_data(count, validation)
            fitting.append(recipe)
        except InputError:
            if asked:
                raise
            if scored or validation:  # of questions alone nobody expects a fit of scores
                had = f"{count} scored training and {validation} scored validation samples"
                needed = f"{recipe.least} and {recipe.least_validation}"
                notes.append(f"{recipe.name} is left out: there are {had}, it needs {needed}")
    if fitting:
        return fitting, replace(job, notes=tuple(notes))
    if job.learner is LANGUAGE_MODEL:
        return _with_enough(job, _recipes("gepa"), asked=True)
    least, wanted, there = recipe_named("finetune").least, list[str](), list[str]()
    counts = {"scored": scored, "answered": _least_of(job, "train", "mcq")}
    for kind, count in counts.items():
        if count or not any(counts.values()):
            wanted.append(f"{least} {kind}")
            there.append(str(count))
    fault = f"learns from {' or '.join(wanted)} training samples, and there are {' and '.join(there)}"
    return recipes, replace(job, kept=f"the embedded expert {fault}")


def upside_down(job: Job, agreement: Figure | None) -> str | None:
    """Say that scores seem to be upside down where the uncompiled program's clearly run against them, else None.

    Of fewer than eight samples the order says too little. A job with `force` takes scores as they are.
    """
    if job.force or agreement is None or agreement.sign >= 0 or agreement.n < MIN_GROUPS:
        return None
    low_first = any(not sample.higher_is_better for sample in job.splits["train"])
    key = '"higher_is_better": false (--lower-is-better)'
    side, mend = ("high", f"take {key} out") if low_first else ("low", f"say {key}")
    return (
        f"data {job.data!r}: its scores run against the program's (SRCC {agreement} on {agreement.n} training images); "
        f"{mend} if {side} scores are the good ones, or --force to compile on them as they are"
    )


def _roles(choice: str | Sequence[str] | None, usual: tuple[str, ...]) -> tuple[str, ...]:
    if choice is None:
        return usual
    names = [n.strip() for n in choice.split(",")] if isinstance(choice, str) else list(choice)
    for name in names:
        if name not in ROLES:
            raise InputError(f"role {name!r}: unknown{did_you_mean(name, ROLES)}")
    return tuple(role for role in ROLES if role in names)


def _divided(job: Job, manifest: Place, layout: Layout) -> Job:
    """Return the job with a manifest's labelled samples by their own splits, or drawn where it has none."""
    doubt, samples = check_scale(manifest, layout), list(read_manifest(manifest, layout))
    check_leaks(samples)
    check_contents(samples)
    labelled = [sample for sample in samples if sample.is_labelled and not sample.only_confirms]
    if not labelled and any(sample.only_confirms for sample in samples):
        raise InputError(
            f"manifest {str(manifest)!r}: all labels only confirm what the program suggested (circular: it would learn "
            "from itself); rate pictures that it did not suggest on, or decide against what it suggests"
        )
    if not labelled:
        raise InputError(f"manifest {str(manifest)!r}: no sample has a label; give {LABELS}")
    unlabelled = sum(not (sample.is_labelled or sample.only_confirms) for sample in samples)
    notes = tuple(filter(None, (doubt, note_on(manifest), left_out(unlabelled, len(samples)) if unlabelled else "")))
    fixed, job = any(sample.split for sample in labelled), replace(job, doubt=doubt)
    return _as_given(job, labelled, manifest, notes) if fixed else _drawn(job, labelled, notes)


def _as_given(job: Job, labelled: Sequence[Sample], manifest: Place, notes: tuple[str, ...]) -> Job:
    splits = _by_name(labelled, lambda sample: sample.split)
    if not all(splits.values()):
        empty = ", ".join(name for name, members in splits.items() if not members)
        raise InputError(
            f"manifest {str(manifest)!r}: no labelled sample in split {empty}; give each sample a "
            '"split" of train, validation or test, or none at all'
        )
    if without := len(labelled) - sum(map(len, splits.values())):
        notes = (*notes, f"{without} of {len(labelled)} labelled rows have no split and are left out")
    photographs = _groups(splits["validation"])
    notes, kept = (*notes, *_without_missing(splits)), _constant([*splits["train"], *splits["validation"]])
    if photographs < MIN_GROUPS and not all(sample.is_made_up for sample in labelled):
        few = f"validation has {counted(photographs, 'photograph')}"
        kept = f"{few}, and a choice by fewer than {MIN_GROUPS} does not hold for others"
    return replace(job, splits=splits, notes=notes, kept=kept)


def _drawn(job: Job, labelled: Sequence[Sample], notes: tuple[str, ...]) -> Job:
    """Split by group where that leaves enough of each, else into folds; what is too little for both is not compiled."""
    usable, seed = {"train": list(labelled)}, job.settings.seed
    notes = (*notes, *_without_missing(usable))
    samples, joined = joined_by_content(usable["train"])
    count, groups, kept = len(samples), _groups(samples), _constant(samples)
    if joined:
        notes = (*notes, f"{joined} samples show the same image file as another: they stay together")
    if count < LEAST_LABELS or groups < MIN_GROUPS:
        few = f"{counted(count, 'label')} of {counted(groups, 'photograph')}"
        enough = f"{LEAST_LABELS} labels of {MIN_GROUPS} photographs"
        kept = f"{few} are too few to tell a gain from chance; give at least {enough}"
    if kept is not None:
        return replace(job, splits=dict.fromkeys(_SPLITS, samples), notes=notes, kept=kept)
    splits = _by_plan(samples, FRACTIONS, seed)
    sizes = ", ".join(f"{len(members)} {name}" for name, members in splits.items())
    if count >= _ONE_SPLIT and _groups(splits["validation"]) >= MIN_GROUPS:
        notes = (*notes, f"no split in the data: {sizes}, drawn by group with seed {seed}")
        return replace(job, splits=splits, notes=notes)
    folds = [{**_by_plan(rest, _TAUGHT, seed), "test": held} for rest, held in _by_fold(samples, FOLDS, seed)]
    note = f"no split in the data, {count} labels of {groups} photographs: cross-validation over {FOLDS} folds by group"
    splits = {**_by_plan(samples, _TAUGHT, seed), "test": samples}
    return replace(job, splits=splits, notes=(*notes, f"{note}, seed {seed}"), folds=tuple(folds))


def _reviewed(job: Job, opinions: Sequence[Opinion], file: Path) -> Job:
    """Return a job whose training and validation labels are as second opinions leave them.

    The test keeps people's labels: opinions are on the worst misses of a program, in sight of its scores.
    """
    everything = {sample.id: sample for members in job.splits.values() for sample in members}
    review = Review.of(opinions, everything.values())

    def applied(splits: Splits) -> Splits:
        taught = {name: review.applied(splits[name]) for name in ("train", "validation")}
        if empty := [name for name, members in taught.items() if splits[name] and not members]:
            raise InputError(f"review {str(file)!r}: leaves out every label of {empty[0]}; give more labels")
        return {**splits, **taught}

    learned = [sample.id for name in ("train", "validation") for sample in job.splits[name]]
    return replace(
        job, splits=applied(job.splits), folds=tuple(map(applied, job.folds)),
        notes=(*job.notes, review.text(learned)), review=str(file),
    )  # fmt: skip


def _by_fold(samples: Sequence[Sample], count: int, seed: int) -> Iterator[tuple[list[Sample], list[Sample]]]:
    """Yield the samples outside of each fold, and those in it; a fold of few groups may be empty and is left out."""
    fold_of = plan_folds(samples, count, seed=seed)
    for fold in range(count):
        rest, held = list[Sample](), list[Sample]()
        for sample in samples:
            if fold_of[group_of(sample)] == fold:
                held.append(sample)
            else:
                rest.append(sample)
        if held:
            yield rest, held


def _by_plan(samples: Sequence[Sample], fractions: tuple[float, float, float], seed: int) -> Splits:
    split_of = plan_splits(samples, fractions=fractions, seed=seed).splits
    return _by_name(samples, lambda sample: split_of[group_of(sample)])


def _by_name(samples: Sequence[Sample], name_of: Callable[[Sample], str | None]) -> Splits:
    splits: Splits = {"train": [], "validation": [], "test": []}
    for sample in samples:
        name = name_of(sample)
        if name is not None:
            splits[name].append(sample)
    return splits


def _constant(samples: Sequence[Sample]) -> str | None:
    """Say that all labels are one score, if they are."""
    alike = len({sample.quality for sample in samples}) == 1 and not any(sample.options for sample in samples)
    return "all scores are the same" if alike else None


def _groups(samples: Sequence[Sample]) -> int:
    return len(set(map(group_of, samples)))


def _without_missing(splits: Splits) -> tuple[str, ...]:
    """Take samples whose files are gone out of train; return a note on each split that has such. InputError if all."""
    notes = []
    for name, members in splits.items():
        usable, lost = list[Sample](), list[Sample]()
        for sample in members:
            (usable if sample.missing_file is None else lost).append(sample)
        if not lost:
            continue
        files = f"{lost[0].id!r} has no file {str(lost[0].missing_file)!r}"
        files += f", and {len(lost) - 1} more lack theirs" if len(lost) > 1 else ""
        kind = "training" if name == "train" else name
        note = f"{len(usable)} of {len(members)} {kind} samples usable: {files}"
        if not usable:
            raise InputError(f"{note}; restore the files (python -m data.check lists all)")
        notes.append(note if name == "train" else f"{note}; they count as failed")
        if name == "train":
            splits[name] = usable
    return tuple(notes)
