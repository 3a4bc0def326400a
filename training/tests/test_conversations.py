from __future__ import annotations

import json
import re
import tomllib
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from uuid import UUID

import pytest

from agents.message import Message as Item
from agents.prompt import assemble
from agents.tools.calculator import calculator
from agents.tools.convert_units import convert_units
from agents.tools.current_time import find_zone
from agents.turn import Turn
from inference.prompt import ChatMessage, ToolCall
from inference.template import ChatTemplate
from training import base, builtin, functions, held_out, questions
from training.conversations import Conversations, Message, Tree, accepted, alike
from training.functions import Tool
from training.passages import TOKEN_CHARS, Passage, prompt, readings
from training.talk import Talk
from training.values import DATA, MIXTURE, POOLS, Chooser, Unfit
from worker.cli.evals.suite import read_suites

TREES = 250


@pytest.fixture(scope="module")
def trees() -> list[Tree]:
    return list(islice(Conversations("tests").trees(), TREES))


@pytest.fixture
def choose() -> Chooser:
    return Chooser("conversations")


def branches(trees: list[Tree]) -> list[list[Message]]:
    return [branch for tree in trees for branch in tree.branches]


def test_the_same_seed_writes_the_same_trees(trees: list[Tree]) -> None:
    assert list(islice(Conversations("tests").trees(), 3)) == trees[:3]


def test_a_branch_begins_with_the_user_and_ends_with_the_assistant(trees: list[Tree]) -> None:
    for branch in branches(trees):
        assert branch[0]["role"] == "user"
        assert branch[-1]["role"] == "assistant"


def test_only_tools_of_the_tree_are_called(trees: list[Tree]) -> None:
    for tree in trees:
        names = {tool["function"]["name"] for tool in tree.tools}
        called = {
            call["function"]["name"] for branch in tree.branches for m in branch for call in m.get("tool_calls", ())
        }
        assert called <= names


def test_every_share_of_the_mixture_occurs(trees: list[Tree]) -> None:
    counts = [len(branch[1].get("tool_calls", ())) for branch in branches(trees)]
    assert {0, 1, 2, 3} <= set(counts)
    texts = [branch[-1]["content"] for branch in branches(trees)]
    assert any(re.search(r"\[\d\]", text) for text in texts)
    assert POOLS["refusal"][0] in texts
    assert any("tool" in text for text in texts)


def test_functions_that_are_held_out_are_not_in_training() -> None:
    train, test = Conversations("any"), Conversations("any", "test")
    for ours, theirs in ((train.everyday, test.everyday), (train.services, test.services)):
        assert not {f.description for f in ours} & {f.description for f in theirs}


def test_no_question_of_the_newcomers_is_in_training(trees: list[Tree]) -> None:
    suite = tomllib.loads((DATA / "newcomers.toml").read_text())
    asked = {case["input"].lower() for case in suite["case"] if "input" in case} - {"hi"}  # there is one way to say it
    said = {branch[0]["content"].split("Question: ")[-1].lower() for branch in branches(trees)}
    assert len(asked) > 25
    assert not asked & said
    talk = Talk()
    listed = (*talk.page, *talk.client, *talk.world, *talk.general, *talk.unknown)
    written = [*(text for texts, _ in listed for text in texts), *chain.from_iterable(talk.dialogues)]
    written += [
        *questions.questions(),
        *(
            text
            for each in readings()
            for text in (*each.open, *(way for fact in each.facts for way in fact.questions))
        ),
        *(text for function in functions.read() for text in function.templates),
    ]
    assert not {_words(text) for text in asked} & {_words(way) for text in written for way in text.split("|")}


def _words(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def test_a_dialogue_answers_each_thing_that_is_said(choose: Chooser) -> None:
    talk = Talk()
    assert all(len(lines) % 2 == 0 for lines in talk.dialogues)
    for _ in range(300):
        told = talk.dialogue(choose)
        assert len(told) >= 2
        assert all(text.strip() and answer.strip() for text, answer in told)
        assert not re.search(r"\{\w+\}|\|", str(told))


def test_held_out_cases_are_a_suite_of_the_gate(tmp_path: Path) -> None:
    path = tmp_path / "held-out.jsonl"
    held_out.main(str(path), "2")
    suite = read_suites([path, DATA / "newcomers.toml"])
    assert {case.group for case in suite.cases} >= set(held_out.KINDS)


def test_no_function_of_the_written_calls_is_in_training() -> None:
    cases = read_suites([DATA / "calls.jsonl"]).cases
    assert all([case.group for case in cases].count(kind) == 20 for kind in held_out.KINDS)
    learnt = [*functions.read(), *functions.read(functions.SERVICES)]
    described = {_words(function.description) for function in learnt}
    assert not {_words(tool.description) for case in cases for tool in case.tools or ()} & described
    assert not {_words(case.question) for case in cases} & {_words(way) for each in learnt for way in each.templates}


def test_a_result_is_what_the_tool_of_the_server_returns(choose: Chooser) -> None:
    for _ in range(30):
        sum_, conversion, time = builtin.sum_(choose), builtin.conversion(choose), builtin.time(choose)
        assert json.loads(sum_.result) == calculator.function(**sum_.call["arguments"])
        assert str(json.loads(sum_.result)["result"]) in sum_.answer
        assert json.loads(conversion.result) == convert_units.function(**conversion.call["arguments"])
        assert find_zone(time.call["arguments"]["timezone"]) == json.loads(time.result)["timezone"]


def test_a_follow_up_names_what_is_new_alone(choose: Chooser) -> None:
    before = builtin.time(choose)
    for after in (before.again(choose) for _ in range(20)):
        assert after.call["name"] == "current_time"
        assert after.text in [form.format(after.thing) for form in POOLS["time again"]]
        assert after.thing in after.answer


def test_an_answer_from_passages_is_a_sentence_of_the_passage_that_it_cites(
    choose: Chooser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MIXTURE, "readings", 0)  # whose answers may join what stands apart
    refusals = POOLS["refusal"]
    retold = {fact.retold for fact in questions.written_questions()}
    refused = 0
    for _ in range(200):
        asked = questions.ask(choose)
        refused += asked.answer in refusals
        numbered = dict(re.findall(r"^\[(\d)\] (.*?)(?=\n\[\d\]|\n\nQuestion)", asked.text, re.MULTILINE | re.DOTALL))
        if asked.answer in refusals or "|" in asked.text:
            continue
        for sentence, number in re.findall(r"(\S.*?) \[(\d)\]\.", asked.answer):
            assert sentence in retold or sentence[1:] in " ".join(numbered[number].split())
    assert 20 < refused < 100


def test_a_fact_in_a_table_is_told_in_a_sentence() -> None:
    fact = questions._fact("`--port` | `8080` => The port is 8080|which port?;;port?")
    assert (fact.sentence, fact.answer, fact.questions) == (
        "`--port` | `8080`",
        "The port is 8080",
        ("which port?", "port?"),
    )
    assert questions._fact("the port is free|port?").answer == "The port is free"


def test_a_prompt_holds_what_a_model_has_time_to_read_and_often_the_answer_behind_other_sentences(
    choose: Chooser,
) -> None:
    prompts = [questions.about_found(choose) for _ in range(400)]
    answered = [asked for asked in prompts if "[" in asked.answer]
    alone = [asked for asked in answered if "\n[2]" not in asked.text]
    behind = [asked for asked in answered if not asked.answer.endswith("[1].")]
    assert 0.1 < len(alone) / len(answered) < 0.6
    assert 0.2 < len(behind) / len(answered) < 0.6
    sizes = sorted(len(asked.text) // TOKEN_CHARS for asked in prompts)
    assert sizes[len(sizes) // 2] < 150


def test_the_questions_about_the_documentation_are_answered_by_it() -> None:
    told = [" ".join(path.read_text().split()) for path in questions.DOCS.glob("*.md")]
    facts = questions.written_questions()
    assert [fact.sentence for fact in facts if not any(fact.sentence in text for text in told)] == []


def test_questions_about_the_documentation_come_with_the_passages_that_a_worker_finds() -> None:
    answered = {question for _, question in questions.answered_questions()}
    assert len(answered) > 0.4 * len(questions.questions())  # some pages are not in the store
    assert not answered & set(questions.undocumented())


def test_what_a_tool_cannot_answer_is_asked_about_its_own_things() -> None:
    known = {function.name: {p.name for p in function.parameters} for function in functions.read()}
    for name, texts in Conversations("any").near.items():
        assert {word for text in texts for word in functions.NAMED.findall(text)} <= known[name]


def test_nothing_is_declined_that_a_tool_of_another_name_can_do() -> None:
    known = {function.name: function for function in functions.read()}
    for one, other in (
        ("coordinates_of", "geocode_address"),
        ("find_restaurants", "restaurant_search"),
        ("bus_times", "next_departures"),
        ("run_query", "db_fetch_records"),
        ("plot_data", "create_chart"),
        ("carbon_footprint", "calculate_emissions_trip"),
        ("buy_concert_ticket", "purchase_event_tickets"),
    ):
        assert alike(known[one], known[other]), (one, other)
    assert not alike(known["find_restaurants"], known["calculate_emissions_trip"])
    assert alike(known["weather.current"], known["weather_now"])
    assert not alike(known["music.notes_of_scale"], known["music.transpose"])


def test_what_a_tool_cannot_answer_is_not_declined_where_one_beside_it_may(choose: Chooser) -> None:
    known = {function.name: function for function in functions.read()}
    director, cast, prime = (
        known[name].tool(choose) for name in ("movies.get_director", "movies.get_cast", "is_prime_number")
    )
    made = Conversations("beside")

    def declined(*tools: Tool) -> list[str]:
        asked = []
        for _ in range(80):
            with suppress(Unfit):
                asked.append(made.declined([*tools])[0]["content"])
        return asked

    assert not any("Who plays the lead in" in text for text in declined(director, cast))
    assert any("Who plays the lead in" in text for text in declined(director, prime))


def test_passages_stand_in_a_prompt_as_the_product_puts_them() -> None:
    ours = [Passage("A > B", "One line\nof text."), Passage("C", "- a\n- b")]
    turn = Turn(UUID(int=1), (Item("user", "Why?"),))
    assert prompt(ours, "Why?") == assemble(turn, passages=[p.retrieved for p in ours])[-1].content


def test_a_tree_reads_as_the_product_renders_it(trees: list[Tree]) -> None:
    theirs = ChatTemplate(base.TEMPLATE.read_text())
    ours = base.tokenizer(base.BUNDLED / "demo-chat-q8_0.gguf")
    for tree in trees[:30]:
        for branch in tree.branches[:3]:
            messages = [tree.system, *branch[:-1]]
            text = ours.apply_chat_template(
                messages, tools=tree.tools or None, tokenize=False, add_generation_prompt=True
            )
            told = theirs.render([_told(message) for message in messages], tree.tools)
            assert not told.rewrites
            assert text == "".join(segment.text for segment in told)


def _told(message: Message) -> ChatMessage:
    calls = tuple(
        ToolCall(each["function"]["name"], json.dumps(each["function"]["arguments"], ensure_ascii=False))
        for each in message.get("tool_calls", ())
    )
    return ChatMessage(message["role"], message["content"], calls)


def test_accepted_answers_of_a_platform_are_trees(tmp_path: Path) -> None:
    path = tmp_path / "accepted.jsonl"
    asked = {"role": "user", "content": "Where?"}
    lines = [
        {"messages": [{"role": "system", "content": "Be kind."}, asked, {"role": "assistant", "content": "Here."}]},
        {"messages": [asked, {"role": "assistant", "content": "There."}], "tools": [{"type": "function"}]},
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    one, other, again = islice(accepted(path), 3)
    assert one == again
    assert one.system["content"] == "Be kind."
    assert [message["content"] for message in other.branches[0]] == ["Where?", "There."]
    assert other.tools == [{"type": "function"}]
