"""The paper's rule table for a plan's four steps: one place for the expert that plans and for the check of any plan."""

__all__ = ("steps",)


def steps(*, is_iqa: bool, names_distortions: bool, names_tools: bool, is_measurable: bool) -> dict[str, bool]:
    """Return which steps a plan takes, by the fields of `Plan`.

    "Other" takes none. Detection only where no distortion is named; analysis always. A named tool runs without
    selection; a scope of which no part can be measured (objects without a box) has no tools; otherwise both.

    >>> steps(is_iqa=True, names_distortions=False, names_tools=True, is_measurable=True)["tool_selection"]
    False
    """
    return {
        "distortion_detection": is_iqa and not names_distortions,
        "distortion_analysis": is_iqa,
        "tool_selection": is_iqa and not names_tools and is_measurable,
        "tool_execute": is_iqa and (names_tools or is_measurable),
    }
