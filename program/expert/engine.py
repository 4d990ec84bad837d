"""The embedded backend as a DSPy engine: it answers structured calls by measurement."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import dspy
import numpy as np
from dspy import lm15
from pydantic import BaseModel

from program.common.errors import ModelError
from program.expert import calls
from program.expert.answer import findings, planning
from program.expert.answer.beliefs import Look, faint
from program.expert.answer.claims import cells_in, form
from program.expert.answer.planning import Inputs, is_about_quality, region_pattern
from program.expert.answer.questions import (
    ChosenOption,
    answer_choice,
    choice_reason,
    choose_region,
    direct_answer,
    is_guessed,
    labelled_reason,
    region_reason,
    unseen,
)
from program.expert.judge.faults import not_judged, regained
from program.expert.judge.quality import UNMOVED, Features, QualityBelief, believe
from program.expert.judge.views import View, Viewer, population, reading, share_below
from program.expert.store import MODEL, NAME, REVISION
from program.lms.adapter import KeptAdapter, events_of
from program.lms.traits import ModelTraits
from program.tools.calibration import BeliefError
from signatures.rubric import PLAIN, TRAITS, Rubric, rubric_in
from signatures.schemas import GLOBAL, ScoreShift

logger = logging.getLogger(__name__)

_WEIGHT_OF_A_GUESS = 0.3
"""Of an option that no measurement speaks for, beside right answers about similar photographs."""
_REGIONS_TOLD = 3


def belief(view: View, instructions: str = "", shift: ScoreShift = UNMOVED) -> QualityBelief:
    """Return the quality believed in by the instructions' rubric, moved by what labels say."""
    features = _judged_features(view, rubric_in(instructions))
    if gain := regained(view):
        features = features._replace(quality=np.minimum(features.quality + gain, 5.0))
    if not_judged(view) is not None:  # people scored photographs
        features = features._replace(novelty=np.ones(1))
    return believe(view.model, features, shift)


def properties_of(view: View) -> dict[str, float]:
    """Return where an image stands among photographs in each of the rubric's `TRAITS`, 0 .. 1."""
    known = population()
    return {name: share_below(reading(view, name), known[name]) for name in TRAITS}


def _judged_features(view: View, rubric: Rubric) -> Features:
    features = view.judged
    if rubric is PLAIN:
        return features
    traits = properties_of(view) if rubric.likes else {}
    quality = rubric.judged(features.quality, view.severities, traits)
    return features._replace(quality=quality)


def answer(
    names: Iterable[str], inputs: Inputs, instructions: str = "", viewer: Viewer | None = None
) -> dict[str, Any]:
    """Return the output fields of one structured call, as JSON values.

    Dispatches on their names, since instructions may have been rewritten: of these only a rubric
    is read (see `signatures.rubric`). A field that it does not know is left out, with a warning
    the first time. ModelError where it knows none.
    """
    names = tuple(names)
    questions = dict.fromkeys(_ANSWERS[name] for name in names if name in _ANSWERS)
    if not questions:
        raise ModelError(
            "perceptual/expert answers only this program's own signatures, not one with the "
            f"outputs {sorted(names)}; give a language model for this step (--reflection-lm PROVIDER/MODEL)"
        )
    given = {name: value for name, value in inputs.items() if value is not None}
    outputs: dict[str, Any] = {}
    for question in questions:
        outputs |= question(viewer or Viewer(), instructions, given)
    outputs["reasoning"] = outputs.get("quality_reasoning", "Read from the measurements.")
    unknown = tuple(name for name in names if name not in outputs)
    if unknown:
        _warn_of(unknown)
    return {name: outputs[name] for name in names if name in outputs}


@cache
def _warn_of(unknown: tuple[str, ...]) -> None:
    fields = ", ".join(map(repr, unknown))
    logger.warning("perceptual/expert leaves the output %s empty: only a language model (--lm) can fill it", fields)


def _detect(viewer: Viewer, instructions: str, inputs: Inputs) -> dict[str, Any]:
    categories = findings.present(_view(viewer, inputs))
    regions = calls.regions_of(inputs)
    return {"distortion_set": [{"region": name, "distortions": categories} for name in regions]}


def _diagnose(viewer: Viewer, instructions: str, inputs: Inputs) -> dict[str, Any]:
    view, phrases = _view(viewer, inputs).aligned, findings.phrases_for(str(inputs.get("query", "")))
    listed = calls.categories_by_region(inputs)
    if "regions" in inputs:
        regions = calls.regions_of(inputs)
    else:
        regions = list(listed) or [GLOBAL]
    # Asked to diagnose, it keeps none back that is there, whatever the question names.
    visible = findings.present(view) if "regions" in inputs or not listed else []
    answer = []
    for region in regions:
        categories = list(dict.fromkeys([*listed.get(region, []), *visible]))
        if not categories and len(regions) > 1:
            # One of several that nothing was said of would count as not looked at.
            categories = [findings.strongest(view.severities)]
        asked = faint(Look(view), listed.get(region, []))
        answer += findings.findings(view, region, categories, phrases, asked)
    return {"findings": answer, "distortion_analysis": answer}


def _choose(viewer: Viewer, instructions: str, inputs: Inputs) -> dict[str, Any]:
    view, query = _view(viewer, inputs), str(inputs.get("query", ""))
    options, phrases = calls.options_of(inputs), findings.phrases_for(query)
    if not options:
        raise ModelError('perceptual/expert: the options cannot be read; write each on a line of its own, as "A. Yes"')
    looks = _looks_at_regions(viewer, inputs, options)
    if looks and (choice := choose_region(looks, query, options)):
        reason = region_reason(choice, looks, options, phrases)
        return {"final_answer": choice.letter, "quality_reasoning": reason}
    scores = [score for _, score in calls.scores_of(inputs)]
    choice = answer_choice(view, query, options, scores)
    shares = calls.option_shares(inputs)
    letter, quality = _letter_beside_labels(choice, shares), belief(view, instructions).mean
    is_guess = False
    if letter != choice.letter or (letter in shares and not choice.measured):
        reason = labelled_reason(letter, choice.look.view, options, phrases, quality)
    else:
        reason = choice_reason(choice, options, query, phrases, quality)
        is_guess = is_guessed(choice, options)
    return {"final_answer": letter, "quality_reasoning": reason, "guess": "yes" if is_guess else None}


def _looks_at_regions(viewer: Viewer, inputs: Inputs, options: Mapping[str, str]) -> dict[str, Look]:
    """Return the looks at the regions that the options name, if each option names one."""
    named = {name.casefold().replace("_", " "): name for name in calls.region_crops(inputs)}
    looks = {}
    for letter, text in options.items():
        name = form("before_name").sub("", text.casefold()).strip(" .!")
        if name not in named:
            return {}
        looks[letter] = Look(_part(viewer, inputs, named[name]))
    return looks


def _letter_beside_labels(choice: ChosenOption, shares: Mapping[str, float]) -> str:
    """Return the likeliest option by what was measured and by answers about similar photographs.

    Both count alike, a guess less. By questions about damage to CLIVE's training photographs, each
    left out.
    """
    most = max(choice.probabilities.values())
    weight = 1.0 if choice.measured else _WEIGHT_OF_A_GUESS
    votes = {}
    for letter, probability in choice.probabilities.items():
        votes[letter] = weight * probability / most + shares.get(letter, 0.0)
    # Of equal ones the one that was measured.
    return max([choice.letter, *votes], key=votes.__getitem__)


def _explain(viewer: Viewer, instructions: str, inputs: Inputs) -> dict[str, Any]:
    view, query = _view(viewer, inputs), str(inputs.get("query", ""))
    phrases, scores = findings.phrases_for(query), calls.scores_of(inputs)
    judged = belief(view, instructions, calls.score_shift_of(inputs))
    # A place that a region's name tells is no place inside it.
    place = "" if _named_crops(inputs) else query
    look = Look(view.aligned, [score for _, score in scores], cells_in(place, with_subject=False))
    if is_about_quality(query):
        direct = direct_answer(look, query, phrases)
    else:
        direct = [unseen(query, phrases)]
    faults_asked = not direct and form("faults").search(query) is not None
    words = findings.summary(view, judged.mean, phrases, faults_asked=faults_asked)
    rest = findings.without_repeats(words, direct, phrases)
    return {
        "final_answer": phrases.join(*direct, rest, *_regions(viewer, inputs, phrases)),
        "quality_reasoning": findings.details(view.aligned, judged, scores, phrases),
    }


def _rate(viewer: Viewer, instructions: str, inputs: Inputs) -> dict[str, Any]:
    view, query = _view(viewer, inputs), str(inputs.get("query", ""))
    judged, phrases = belief(view, instructions, calls.score_shift_of(inputs)), findings.phrases_for(query)
    sentences = [] if is_about_quality(query) else [unseen(query, phrases)]
    sentences.append(findings.summary(view, judged.mean, phrases))
    sentences += _regions(viewer, inputs, phrases)
    if judged.is_rough and not_judged(view) is None:
        sentences.append(phrases.say("sentence.unlike"))
    masses = judged.by_word()
    return {
        "quality_probs": masses,
        "quality_level": max(masses, key=masses.__getitem__),
        "quality_reasoning": phrases.join(*sentences),
    }


def _named_crops(inputs: Inputs) -> list[str]:
    """Return the regions shown that the question names: one alone is the image to judge."""
    query, names = str(inputs.get("query", "")), calls.region_crops(inputs)
    return [name for name in names if region_pattern(name).search(query)]


def _regions(viewer: Viewer, inputs: Inputs, phrases: findings.Phrases) -> list[str]:
    """Return a sentence for each of the first regions shown beside the image that is judged."""
    judged, crops = _named_crops(inputs), calls.region_crops(inputs)
    if len(judged) == 1:
        del crops[judged[0]]
    sentences = []
    for name in list(crops)[:_REGIONS_TOLD]:
        told = findings.region_sentence(_part(viewer, inputs, name), phrases)
        sentences.append(findings.name_region(name, told, phrases))
    return sentences


def _part(viewer: Viewer, inputs: Inputs, name: str) -> View:
    """Return the view of a region that is shown beside the image that is judged."""
    reference = dict(inputs.get("reference_crops") or {}).get(name)
    part = viewer.part(calls.region_crops(inputs)[name], inputs.get("whole", inputs["image"]), reference)
    return part.meant(*calls.description_of(inputs))


def _view(viewer: Viewer, inputs: Inputs) -> View:
    if inputs.get("image") is None:
        raise ModelError("perceptual/expert: the question has no image; give one")
    if "whole" in inputs:  # the image is a region of it
        view = viewer.part(inputs["image"], inputs["whole"], inputs.get("reference"))
    else:
        view = viewer.view(inputs["image"], inputs.get("reference"))
    return view.meant(*calls.description_of(inputs))


def _plan(viewer: Viewer, instructions: str, inputs: Inputs) -> dict[str, Any]:
    return {"plan": planning.plan_assessment(inputs)}


def _choose_tools(viewer: Viewer, instructions: str, inputs: Inputs) -> dict[str, Any]:
    return {"selected_tools": calls.choose_tools(inputs)}


def _locate(viewer: Viewer, instructions: str, inputs: Inputs) -> dict[str, Any]:
    # It measures pixels and knows no objects: no box is better than an invented one.
    return {"region_boxes": []}


def _choose_or_explain(viewer: Viewer, instructions: str, inputs: Inputs) -> dict[str, Any]:
    if inputs.get("options"):
        return _choose(viewer, instructions, inputs)
    return _explain(viewer, instructions, inputs)


_ANSWERS: Mapping[str, Callable[[Viewer, str, Inputs], dict[str, Any]]] = {
    "plan": _plan,
    "distortion_set": _detect,
    "distortion_analysis": _diagnose,
    "findings": _diagnose,
    "selected_tools": _choose_tools,
    "region_boxes": _locate,
    "final_answer": _choose_or_explain,
    "quality_probs": _rate,
    "quality_level": _rate,
}
"""By output field: what answers it, and others with it."""


def _plain(value: Any) -> Any:
    url = getattr(value, "url", None)  # of images
    if isinstance(url, str):
        return url
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return repr(value)


class CallAdapter(KeptAdapter):
    """The usual adapter, whose question is the structured call itself, as JSON."""

    def __call__(self, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: Any, inputs: Any) -> Any:
        """Ask for no form of answer: it is always the signature's own fields."""
        return super(dspy.JSONAdapter, self).__call__(lm, lm_kwargs, signature, demos, inputs)

    def format(self, signature: Any, demos: list[Any], inputs: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the instructions, for their rubric, and the call itself; demos are not read."""
        call = {"outputs": list(signature.output_fields), "inputs": inputs}
        text = json.dumps(call, default=_plain, ensure_ascii=False)
        return [
            {"role": "system", "content": signature.instructions}, {"role": "user", "content": text},
        ]  # fmt: skip


# Wrapped again in every subclass: callbacks (MLflow's spans) would see each call twice.
del CallAdapter.parse


class PerceptualEngine:
    """Answers the program's own signatures from measurements. Deterministic and thread-safe."""

    # It answers in the signature's own fields, and DSPy takes milliseconds to build a schema.
    supports_response_schema = supports_function_calling = supports_reasoning = False
    supported_params = frozenset({"temperature", "max_tokens", "seed"})
    traits = ModelTraits(
        reads_images=True, token_probabilities=0, answers_at_once=False, embedded=True,
        smoothing=0.0, model_weight=0.7, adapter=CallAdapter(), takes_references=True,
        errors={
            # On photographs left out; with PIQE .74. The network of LiteNR is its own: fused, both order photographs
            # no better than the expert alone.
            "NR": BeliefError(0.43, 0.8, {"LiteNR": 1.0}),
            # A regression on the quickstart's pairs, each photograph left out, errs by .27 where it was taught the kind
            # of distortion and by .52 where not, its belief states .49; their correlation with HaarPSI's is .58.
            "FR": BeliefError(0.45, 0.55),  # so beside two tools about .7 of its precision count (model_weight)
        },
    )  # fmt: skip

    def __init__(self, cache_dir: Path | None = None) -> None:
        """Keep measurements under `cache_dir` (a folder of its own inside), or in memory only."""
        self._viewer = Viewer(cache_dir)

    def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer the structured call of a request; ModelError unless it came by `CallAdapter`."""
        try:
            call = json.loads(request.messages[-1].text or "")
            outputs, inputs = call["outputs"], call["inputs"]
        except (ValueError, TypeError, KeyError) as error:
            raise ModelError(
                f"{MODEL}: was asked with plain text; use dspy.context(adapter=CallAdapter()) with this model"
            ) from error
        fields = answer(outputs, inputs, str(request.system or ""), self._viewer)
        message = lm15.Message.assistant(json.dumps(fields, ensure_ascii=False))
        usage = lm15.Usage(input_tokens=0, output_tokens=0)
        return lm15.Response(id=None, model=request.model, message=message, finish_reason="stop", usage=usage)

    def stream(self, request: lm15.Request) -> Iterator[Any]:
        """Answer one request as events."""
        yield from events_of(self.complete(request))

    def dump_state(self) -> dict[str, Any]:
        """Return what identifies the engine; no path of this machine."""
        return {"revision": REVISION}

    @classmethod
    def load_state(cls, state: Mapping[str, Any]) -> "PerceptualEngine":
        """Make the engine that a state names; ModelError when it is of another revision."""
        revision = state.get("revision")
        if revision != REVISION:
            raise ModelError(f"{NAME}@{revision}: this version holds {MODEL!r}; compile again with it")
        return cls()

    def __reduce__(self) -> tuple[type["PerceptualEngine"], tuple[()]]:
        return type(self), ()  # a copy elsewhere keeps measurements in memory only


class AsyncPerceptualEngine(PerceptualEngine):
    """The asynchronous counterpart: measures in a worker thread."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """Answer one request without blocking the event loop."""
        return await asyncio.to_thread(PerceptualEngine.complete, self, request)

    async def stream(self, request: lm15.Request) -> AsyncIterator[Any]:  # type: ignore[override]
        """Answer one request as events without blocking the event loop."""
        for event in events_of(await self.complete(request)):
            yield event


def make_perceptual_lm(cache_dir: Path | None = None, **options: Any) -> dspy.LM:
    """Return the embedded expert as a `dspy.LM`; measurements are cached under `cache_dir`.

    DSPy's own answer cache is off by default: an answer costs about a millisecond once the image is
    measured.
    """
    settings = {"cache": False, "num_retries": 0, **options}
    engine, async_engine = PerceptualEngine(cache_dir), AsyncPerceptualEngine(cache_dir)
    return dspy.LM(MODEL, engine=engine, async_engine=async_engine, **settings)
