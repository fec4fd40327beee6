"""
What somebody else wrote is not what the owner wants, today and after a restart, a summary and a day.

The model here obeys everything that it reads. What stands between a stranger's words and an effect is the policy
alone, which knows whose words were in the prompt.
"""

from __future__ import annotations
