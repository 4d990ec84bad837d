"""The method: plan, gather evidence, answer, decide; `program.agent.loop` shows it on one screen."""
