"""
The model that every part of the settings derives from, so that all refuse unknown keys alike. A section is
compiled when it is first read by itself; within a larger one it never is, which saves memory and time.
"""

from pydantic import BaseModel, ConfigDict


class SettingsSection(BaseModel):
    """
    A part of the settings; what derives from it adds its keys and checks.

    It is frozen, refuses keys it does not know and keeps values out of its errors, since they may be secrets.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, defer_build=True)
