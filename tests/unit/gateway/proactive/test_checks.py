"""
What check-ins, the schedule and the budget promise, each with the tests that hold them to it.

====  ==============================================================================================
no.   what must hold
====  ==============================================================================================
H1    a tick is an inbox row named after its instant: once over crashes, restarts, two processes
H2    suspend, clock jumps forward and back, a clock that began with 1970, DST in both directions
H3    missed ticks are one; a virtual year in several zones
H4    active hours over midnight and to 24:00; an empty window is a warning
H5    nothing to do is no model call: a week costs 0 calls and 0 tokens
H6    HEARTBEAT.md missing, 1 MB, binary, deleted while it is read
H7    watches decide without a model; what a command says is no order
H8    HEARTBEAT_OK, leaked thoughts, chatter, repeated and growing alerts
H9    a session of its own; an alert stands in the conversation where it is read
H10   the target is the owner alone, never a group, never whoever wrote last
H11   no target is a reason in the ledger; what was seen meanwhile is told later
H12   a digest by mail once a day, urgent things and files at once, over kills
H13   limits of time, steps and tokens; strange answers of 50,000 characters or thoughts only
H14   failures back off and are shown; the missed-heartbeat alert
H15   ``heartbeat log`` and ``now --dry-run``
H16   SIGKILL between tick, run, delivery and ledger, on Matrix and mail
C1    ``at``, ``every`` and cron with zones; a daily time comes once a day whatever the clocks do
C2    one-shots that fell due while nobody ran; repeated jobs catch up once
C3    a job answers where it was made, for whom it was made, by what holds now
C4    a person who is not allowed any more; a room with a rule of its own; a room that was left
C5    changes while a run is in flight; ``!new`` while a job or a check-in runs
C6    jitter; limits per person; a job makes no jobs
C7    ``cron list|add|remove|pause|resume|run``
C8    thousands of jobs; the twenty-ninth of February; clocks that are days, years, centuries wrong
C9    whatever a model or a person says for a time is answered
M1    ``memory_write`` and ``search_history`` in each run, with the right scope
B1    the order of sacrifice over a day: check-ins, consolidation, others, the owner
B2    each refusal is one message; a restart says nothing twice
B3    ``usage`` by day, purpose, session and model, with a chart
S1    settings that are wrong are said with their place
R1    the recipes of the README
====  ==============================================================================================

`CHECKS` names the tests; those here see that each one exists.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[3]
BEAT, WHEN, TURNS, FAILING, WATCH, SILENCE = (
    "unit/channels/heartbeat/test_channel.py",
    "unit/channels/heartbeat/test_schedule.py",
    "integration/test_heartbeat_turns.py",
    "integration/test_heartbeat_failing.py",
    "unit/channels/heartbeat/test_watch.py",
    "unit/channels/heartbeat/test_silence.py",
)
JOBS, RULES, CLOCKS, OPERATOR, TIMING, REAL, KILL, BUDGET, DAY, TYPED = (
    "integration/test_schedule.py",
    "integration/test_schedule_rules.py",
    "integration/test_schedule_clocks.py",
    "integration/test_schedule_operator.py",
    "unit/gateway/proactive/test_triggers.py",
    "integration/test_proactive_real.py",
    "kill/test_proactive_real_kill.py",
    "unit/gateway/budget/test_metering.py",
    "integration/test_daily_budget.py",
    "unit/gateway/cli/test_cron.py",
)
CHECKS: dict[str, dict[str, tuple[str, ...]]] = {
    "H1": {
        BEAT: (
            "test_what_a_tick_is",
            "test_a_restart_at_every_moment_repeats_nothing",
            "test_two_processes_mean_the_same_tick",
            "test_a_kill_before_the_commit_fires_again",
            "test_a_lost_position_repeats_nothing",
        )
    },
    "H2": {
        BEAT: ("test_the_clock_jumps_forward", "test_the_clock_jumps_back"),
        WHEN: ("test_an_hour_that_is_skipped", "test_an_hour_that_comes_twice"),
        FAILING: ("test_a_clock_that_began_with_1970_makes_no_false_alarm",),
    },
    "H3": {
        BEAT: ("test_missed_ticks_are_one",),
        WHEN: (
            "test_a_year_around_the_clock_misses_and_doubles_nothing",
            "test_a_year_of_working_hours",
            "test_control_a_naive_schedule_is_caught",
        ),
    },
    "H4": {WHEN: ("test_windows", "test_an_empty_window_is_warned_of"), BEAT: ("test_active_hours",)},
    "H5": {
        "integration/test_heartbeat_idle.py": (
            "test_a_week_with_nothing_to_do_costs_nothing",
            "test_the_same_days_with_an_item_are_counted",
        ),
        "unit/channels/heartbeat/test_checklist.py": ("test_nothing_to_do", "test_something_to_do"),
    },
    "H6": {
        BEAT: (
            "test_without_a_readable_checklist_there_is_nothing_to_do",
            "test_what_is_no_text_asks_for_nothing",
            "test_a_huge_checklist_fits_into_a_message",
            "test_a_file_that_comes_and_goes_while_it_is_read",
        )
    },
    "H7": {
        WATCH: (
            "test_a_file_calls_when_it_has_changed_and_never_at_first",
            "test_a_command_calls_by_its_exit_code",
            "test_due_items",
            "test_what_a_command_says_cannot_pose_as_an_order",
        ),
        TURNS: ("test_a_watch_decides",),
    },
    "H8": {
        SILENCE: (
            "test_silence",
            "test_alert",
            "test_a_simpler_rule_would_be_found_out",
            "test_the_same_alert_is_recognised_and_a_growing_one_is_not",
        ),
        TURNS: ("test_the_same_alert_comes_once_and_a_growing_one_again",),
    },
    "H9": {TURNS: ("test_an_alert_is_in_the_conversation_where_it_is_read_and_nothing_else_is",)},
    "H10": {
        TURNS: (
            "test_a_third_person_in_the_room_ends_the_alerts_there",
            "test_who_wrote_last_is_never_the_target",
            "test_a_target_by_setting_needs_no_message_before",
        )
    },
    "H11": {
        TURNS: ("test_no_target_is_a_reason_in_the_ledger_and_costs_nothing",),
        FAILING: (
            "test_a_change_that_nobody_was_told_of_is_told_by_the_next_check_in",
            "test_a_change_seen_while_there_was_no_target_is_told_when_there_is_one",
        ),
    },
    "H12": {
        TURNS: (
            "test_alerts_by_mail_are_one_mail_a_day_and_urgent_ones_come_at_once",
            "test_files_are_not_lost_in_a_digest",
            "test_an_address_that_is_not_the_owners_any_more_gets_no_digest",
        ),
        KILL: ("test_a_digest_by_mail_over_kills",),
    },
    "H13": {
        TURNS: ("test_strange_answers_end_a_check_in",),
        FAILING: ("test_steps_and_time_are_limited", "test_tokens_are_limited"),
        SILENCE: ("test_fifty_thousand_characters_become_a_readable_alert",),
    },
    "H14": {
        FAILING: (
            "test_failures_are_noted_rest_and_are_shown",
            "test_the_dead_mans_notice_comes_once",
            "test_a_machine_that_was_off_tells_it_at_its_start",
        )
    },
    "H15": {TURNS: ("test_now_and_dry_run",), TYPED: ("test_the_ledger_and_what_it_has_cost",)},
    "H16": {
        KILL: (
            "test_alerts_and_jobs_on_matrix_over_kills",
            "test_alerts_by_mail_over_kills",
            "test_the_same_comparison_finds_alerts_that_come_again",
        ),
        "kill/test_proactive_kill.py": (
            "test_a_death_at_any_moment_costs_nothing",
            "test_the_oracle_sees_each_kind_of_wrong",
        ),
    },
    "C1": {
        TIMING: (
            "test_a_daily_time_comes_once_a_day_in_each_zone",
            "test_a_minute_by_minute_clock_would_lose_one_and_double_one",
            "test_a_time_that_is_skipped_runs_at_the_first_moment_after_it",
            "test_a_time_that_occurs_twice_runs_at_its_first_occurrence",
        ),
        JOBS: ("test_remind_me_in_real_time", "test_at_a_time_of_the_day_and_never_twice"),
    },
    "C2": {
        JOBS: ("test_one_that_fell_due_while_nobody_ran_comes_at_the_start", "test_missed_runs_are_one"),
        CLOCKS: ("test_what_had_to_wait_comes_once",),
    },
    "C3": {
        JOBS: ("test_the_model_is_asked_in_the_conversation_with_its_memory_and_tools",),
        RULES: (
            "test_a_reminder_goes_where_its_person_is_alone",
            "test_a_question_with_the_owners_memory_is_paused_and_that_is_said_once",
            "test_a_reminder_says_for_whom_it_is",
            "test_a_guest_reaches_nobody_but_the_guest",
        ),
        REAL: ("test_jobs_where_others_have_come_in_and_where_a_room_has_a_rule",),
    },
    "C4": {
        JOBS: ("test_a_person_who_may_not_speak_any_more_gets_nothing",),
        RULES: ("test_what_the_room_says_now_counts", "test_mail_that_is_only_read_makes_no_jobs"),
        "integration/test_left_and_back.py": (
            "test_a_reminder_is_told_to_its_person_if_the_bot_has_not_come_back",
        ),
    },
    "C5": {
        JOBS: ("test_what_is_changed_while_a_run_is_in_flight_is_kept",),
        RULES: (
            "test_removed_paused_and_removed_for_good_while_it_runs",
            "test_anew_while_a_job_runs",
            "test_anew_while_a_check_in_runs",
        ),
    },
    "C6": {
        JOBS: (
            "test_a_question_starts_a_little_later_each_at_its_own_moment",
            "test_limits_and_whose_jobs_are_seen",
            "test_an_unproven_address_makes_no_jobs",
        ),
        RULES: ("test_a_guests_jobs_do_not_keep_the_bot_busy_all_day",),
        "unit/channels/email/test_loop_guard.py": ("test_what_comes_at_a_time_is_no_loop",),
    },
    "C7": {
        TYPED: ("test_the_life_of_a_job", "test_what_cannot_be_is_said_in_a_sentence"),
        OPERATOR: (
            "test_the_operator_adds_changes_runs_and_removes",
            "test_a_paused_job_runs_when_it_is_told_to",
        ),
    },
    "C8": {
        CLOCKS: (
            "test_many_jobs_cost_a_look_nothing",
            "test_the_twenty_ninth_of_february",
            "test_a_day_back_runs_nothing_again",
            "test_a_clock_that_was_ahead_merges_nothing",
            "test_a_clock_that_is_centuries_ahead_ends_no_job",
        ),
        JOBS: ("test_clock_jumps_and_restarts_run_nothing_twice", "test_two_processes_run_it_once"),
    },
    "C9": {
        CLOCKS: ("test_whatever_a_model_says_for_a_time_is_answered",),
        TIMING: ("test_what_cannot_be_meant_is_refused",),
    },
    "M1": {
        "integration/test_proactive_tools.py": (
            "test_a_job_searches_and_writes_for_whom_it_is",
            "test_a_check_in_searches_and_writes_as_the_owner_and_schedules_nothing",
        ),
        "integration/test_memory_attacks.py": ("test_a_check_in_remembers_like_a_conversation",),
    },
    "B1": {
        BUDGET: (
            "test_the_order_of_sacrifice_over_a_day",
            "test_parallel_runs_go_over_by_less_than_a_call_each",
        ),
        DAY: ("test_check_ins_are_skipped_and_say_why",),
        "kill/test_spending_kill.py": ("test_at_most_one_call_is_not_counted_and_none_twice",),
    },
    "B2": {
        DAY: (
            "test_people_wait_the_owner_goes_on_and_the_next_day_answers_all",
            "test_a_restart_says_nothing_twice_and_forgets_nothing",
        )
    },
    "B3": {
        "unit/gateway/cli/test_usage.py": (
            "test_sums_by_each_name_and_the_budget",
            "test_no_line_of_the_chart_is_wider_than_the_terminal",
        ),
        TYPED: ("test_the_ledger_and_what_it_has_cost",),
    },
    "S1": {
        "unit/gateway/proactive/test_settings.py": (
            "test_what_is_wrong_is_said_with_its_place",
            "test_an_empty_window_is_a_warning",
            "test_a_target_on_no_account_is_said_with_its_place",
        )
    },
    "R1": {
        "integration/test_recipes.py": (
            "test_a_morning_briefing_by_mail",
            "test_medication_twice_a_day_and_once",
        ),
        TURNS: ("test_a_watch_decides",),
    },
}


@pytest.mark.parametrize("check", CHECKS)
def test_each_promise_has_its_tests(check: str) -> None:
    """Nothing stands in the table that is not there, and the table above has every row."""
    assert f"\n{check:<6}" in (__doc__ or "")
    for file, names in CHECKS[check].items():
        tree = ast.parse((TESTS / file).read_text())
        known = {
            each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        assert set(names) <= known, set(names) - known
        assert any(name.startswith("test_") for name in known)


def test_each_row_is_checked() -> None:
    """No row of the table above is without tests."""
    rows = [line.split()[0] for line in (__doc__ or "").splitlines() if line[:1] in set("HCMBSR")]
    assert list(CHECKS) == [row for row in rows if row[1:].isdigit()]
