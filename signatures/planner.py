"""What the Planner is asked."""

import dspy

from signatures import require_docstrings
from signatures.forms import QuestionForm
from signatures.schemas import GLOBAL, Plan

require_docstrings()


class PlanAssessment(dspy.Signature):
    """You plan an image quality assessment. From the question alone, decide what must be looked at.

    1. query_type: IQA for technical quality or degradation; Other for emotion, style, beauty or content.
    2. query_scope: every object or region that the question names; ["Global"] only if it names none.
    3. distortions: per region, those that the question names (blur, noise, lighting, colour, sharpness, contrast,
       compression); empty if it names none.
    4. required_tools: only tools that the question names; else empty.
    When feedback on a previous plan is given, change the plan so that the gap it names is closed.
    """

    query: str = dspy.InputField(desc="the user's question")
    has_reference: bool = dspy.InputField(desc="whether an undistorted reference is given")
    region_names: list[str] | None = dspy.InputField(desc="regions whose boxes are known")
    tool_names: list[str] = dspy.InputField(desc="tools that are ready to run")
    feedback: str | None = dspy.InputField(desc="why the previous plan did not suffice")
    previous_plan: str | None = dspy.InputField(desc="the previous plan, as JSON")
    plan: Plan = dspy.OutputField(desc="the plan")


PLAN = QuestionForm(
    {"plan": {"query_type": "IQA", "query_scope": [GLOBAL], "distortions": [], "required_tools": []}},
    300,
)
