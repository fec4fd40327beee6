"""The command ``!model``: the owner sees and chooses which models answer in a conversation."""

from __future__ import annotations

from agent_core.language import _
from gateway.turns.commands.chat_command_context import CommandContext
from gateway.turns.model_choice import ModelChoice
from gateway.turns.questions.decisions import clean_name
from gateway.turns.questions.question_text import safe_line


class ModelCommand:
    """Answers ``!model``."""

    def __init__(self, models: ModelChoice) -> None:
        self._models = models

    async def answer(self, asked: CommandContext) -> str:
        """
        Show the pools, or choose one, for the owner.

        Among others the owner may choose too, but what the pools are made of is said in private alone.
        """
        if not asked.is_owner:
            return _("Only my owner chooses which models answer.")
        pools, here = self._models.pools(), asked.turn.session
        wanted = clean_name(asked.command.argument)
        if wanted:
            name = next((each for each in pools if each.casefold() == wanted.casefold()), None)
            if name is None and wanted.lower() == "default":
                await self._models.choose(here, "")
                return _(
                    "From your next message on, `{default}` answers here, as everywhere.",
                    default=self._models.default,
                )
            if name is not None:
                await self._models.choose(here, name)
                return _(
                    "From your next message on, `{name}` answers here. `!model default` switches back.",
                    name=name,
                )
        chosen = await self._models.chosen(here)
        now = chosen if chosen in pools else self._models.default
        lines = (
            [_("There is no pool `{wanted}`; nothing was changed.", wanted=safe_line(wanted))]
            if wanted
            else []
        )
        if chosen and chosen not in pools:
            lines.append(
                _(
                    "`{chosen}`, which was chosen here, is no longer in the settings.",
                    chosen=safe_line(chosen),
                )
            )
        lines += [_("`{now}` answers here. These pools exist:", now=now), ""]
        for name, members in pools.items():
            made_of = f": {', then '.join(map(safe_line, members))}" if asked.owner else ""
            lines.append(f"- `{name}`{made_of}{' (default)' if name == self._models.default else ''}")
        return "\n".join([*lines, "", _("`!model NAME` chooses one for this conversation.")])
