"""What the Planner is asked."""

import dspy

from signatures.schemas import Plan

__all__ = ("PlanAssessment",)


class PlanAssessment(dspy.Signature):
    """You are the planner of an image quality assessment. From the question alone, decide what must be looked at.

    1. query_type: IQA when the question is about technical quality or degradation; Other when it is about emotion,
       style, beauty or content.
    2. query_scope: every object or region the question names; ["Global"] only if it names none.
    3. distortion_source: explicit when the question names a distortion or a visual attribute (blur, noise, lighting,
       colour, sharpness, contrast, compression...), and then list it per region in distortions; inferred otherwise.
    4. reference_mode: Full-Reference when a reference image is given, No-Reference otherwise.
    5. required_tools: only tools that the question names.
    6. The four steps are all false for Other. Otherwise: distortion_detection is false when distortions are named, else
       true; distortion_analysis is true; tool_selection and tool_execute are false, true when a tool is named; false,
       false when an object or region without a known box is named and no tool; true, true otherwise.
    When feedback on a previous plan is given, change the plan so that the gap it names is closed.
    """

    query: str = dspy.InputField(desc="the user's question")
    has_reference: bool = dspy.InputField(desc="whether an undistorted reference image is given")
    region_names: list[str] | None = dspy.InputField(desc="regions whose boxes are known")
    tool_names: list[str] = dspy.InputField(desc="tools that are ready to run")
    feedback: str | None = dspy.InputField(desc="why the previous plan did not suffice")
    previous_plan: str | None = dspy.InputField(desc="the previous plan, as JSON")
    plan: Plan = dspy.OutputField(desc="the plan")
