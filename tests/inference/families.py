"""Chat templates that behave as those of the model families that people run are documented to, in short.

What they have in common with the original is what they take, reject and drop, and how they write tools, calls and
reasoning. Their words are ours.
"""

from __future__ import annotations

CHATML = "<|im_start|>{{ m.role }}{{ '\n' }}{{ m.content }}<|im_end|>{{ '\n' }}"
CHATML_ANSWER = "{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}"
CHATML_SYSTEM = (
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% if system or tools %}<|im_start|>system{{ '\n' }}{{ system }}TOOLS<|im_end|>{{ '\n' }}{% endif %}"
)
SCHEMAS = "{% for tool in tools %}{{ '\n' }}{{ tool | tojson }}{% endfor %}"
HERMES_TOOLS = (
    f"{{% if tools %}}{{{{ '\n\n# Tools\n<tools>' }}}}{SCHEMAS}{{{{ '\n</tools>\nCall them so:\n<tool_call>\n"
    '{"name": ..., "arguments": ...}\n</tool_call>\' }}{% endif %}'
)
HERMES_CALLS = (
    '{% for c in m.tool_calls or [] %}{{ \'\n<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
    "{{ c.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
)
CODER_CALLS = (
    "{% for c in m.tool_calls or [] %}{{ '\n<tool_call>\n<function=' + c.function.name + '>\n' }}"
    "{% for key, value in c.function.arguments.items() %}<parameter={{ key }}>{{ '\n' }}"
    "{{ value if value is string else value | tojson }}{{ '\n</parameter>\n' }}{% endfor %}"
    "{{ '</function>\n</tool_call>' }}{% endfor %}"
)
CODER_TOOLS = HERMES_TOOLS.replace('{"name": ..., "arguments": ...}', "<function=...>\n</function>")
CHATML_RESULT = (
    "{% if loop.previtem is undefined or loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n<tool_response>\n' }}{{ m.content }}{{ '\n</tool_response>' }}"
    "{% if loop.nextitem is undefined or loop.nextitem.role != 'tool' %}<|im_end|>{{ '\n' }}{% endif %}"
)


def chatml(tools: str, calls: str, *, system: str = CHATML, answer: str = CHATML_ANSWER, said: str = "") -> str:
    """`system` is what becomes of a later system message."""
    return (
        f"{CHATML_SYSTEM.replace('TOOLS', tools)}{{% for m in messages %}}"
        f"{{% if m.role == 'system' %}}{{% if not loop.first %}}{system}{{% endif %}}"
        f"{{% elif m.role == 'user' %}}{CHATML}"
        f"{{% elif m.role == 'assistant' %}}<|im_start|>assistant{{{{ '\n' }}}}{said}{{{{ m.content }}}}{calls}"
        f"<|im_end|>{{{{ '\n' }}}}{{% elif m.role == 'tool' %}}{CHATML_RESULT}{{% endif %}}{{% endfor %}}{answer}"
    )


REASONING = (
    "{% if m.reasoning_content and loop.last %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{% endif %}"
)
SWITCHED = (
    f"{CHATML_ANSWER}{{% if enable_thinking is defined and not enable_thinking %}}{{{{ '<think>\n\n</think>\n\n' }}}}"
    "{% endif %}"
)
OPENED = f"{CHATML_ANSWER}{{{{ '<think>\n' }}}}"
ASKED = (
    "{% set ns = namespace(asked=false) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.asked = true %}"
    "{% endif %}{% endfor %}{% if not ns.asked %}{{ raise_exception('No user query found in messages.') }}{% endif %}"
)
NOT_FIRST = "{{ raise_exception('System message must be at the beginning.') }}"

LLAMA_TURN = "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}{{ m.content | trim }}<|eot_id|>"
LLAMA_ANSWER = "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
LLAMA_3_0 = f"{{{{ bos_token }}}}{{% for m in messages %}}{LLAMA_TURN}{{% endfor %}}{LLAMA_ANSWER}"
LLAMA_3_1 = (
    "{{ bos_token }}{% set rest = messages %}{% set system = '' %}{% if messages[0].role == 'system' %}"
    "{% set system = messages[0].content %}{% set rest = messages[1:] %}{% endif %}"
    "{{ '<|start_header_id|>system<|end_header_id|>\n\n' }}"
    "{% if tools is not none %}{{ 'Environment: ipython\n' }}{% endif %}{{ system }}<|eot_id|>"
    "{% if tools is not none %}"
    "{% if not rest %}{{ raise_exception('There is no first user message to put tools in!') }}{% endif %}"
    '{{ \'<|start_header_id|>user<|end_header_id|>\n\nAnswer with {"name": ..., "parameters": ...}.\n\' }}'
    "{% for tool in tools %}{{ tool | tojson }}{{ '\n\n' }}{% endfor %}{{ rest[0].content | trim }}<|eot_id|>"
    "{% set rest = rest[1:] %}{% endif %}"
    "{% for m in rest %}{% if 'tool_calls' in m %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('This model takes single tool-calls only!') }}{% endif %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
    '{{ \'{"name": "\' + m.tool_calls[0].function.name + \'", "parameters": \' }}'
    "{{ m.tool_calls[0].function.arguments | tojson }}{{ '}' }}<|eot_id|>"
    "{% elif m.role == 'tool' %}{{ '<|start_header_id|>ipython<|end_header_id|>\n\n' }}"
    "{{ m.content | tojson }}<|eot_id|>"
    f"{{% else %}}{LLAMA_TURN}{{% endif %}}{{% endfor %}}{LLAMA_ANSWER}"
)

ALTERNATE = "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
MISTRAL_V3 = (
    "{% set rest = messages %}{% if messages[0].role == 'system' %}{% set system = messages[0].content %}"
    "{% set rest = messages[1:] %}{% endif %}"
    "{% set ns = namespace(turns=0, asked=-1) %}{% for m in rest %}"
    "{% if m.role == 'user' %}{% set ns.asked = loop.index0 %}{% endif %}"
    "{% if not (m.role == 'tool' or m.tool_calls is defined) %}"
    f"{{% if (m.role == 'user') != (ns.turns % 2 == 0) %}}{ALTERNATE}{{% endif %}}"
    "{% set ns.turns = ns.turns + 1 %}{% endif %}{% endfor %}{{ bos_token }}"
    "{% for m in rest %}{% if m.role == 'user' %}"
    "{% if tools is not none and loop.index0 == ns.asked %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]"
    "{% endif %}[INST] {% if loop.last and system is defined %}{{ system + '\n\n' }}{% endif %}{{ m.content }}[/INST]"
    "{% elif m.tool_calls is defined %}[TOOL_CALLS] [{% for c in m.tool_calls %}{{ (c.function | tojson)[:-1] }}"
    ', "id": "{{ c.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}'
    "{% elif m.role == 'assistant' %} {{ m.content | trim }}{{ eos_token }}"
    '{% elif m.role == \'tool\' %}[TOOL_RESULTS] {"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}'
    "[/TOOL_RESULTS]{% else %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}"
    "{% endfor %}"
)
MISTRAL_V7 = (
    "{{ bos_token }}{% set rest = messages %}{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}"
    "[SYSTEM_PROMPT]{{ messages[0].content }}[/SYSTEM_PROMPT]{% endif %}{% for m in rest %}"
    f"{{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}}{ALTERNATE}{{% endif %}}"
    "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif not m.content %}{{ raise_exception('Assistant messages need content') }}"
    "{% else %}{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
GEMMA_TURNS = (
    f"{{% for m in rest %}}{{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}}{ALTERNATE}{{% endif %}}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}{{ '\n' }}"
    "{% if loop.first %}{{ before }}{% endif %}{{ m.content | trim }}<end_of_turn>{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
GEMMA_2 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    f"{{% set rest, before = messages, '' %}}{GEMMA_TURNS}"
)
GEMMA_3 = (
    "{{ bos_token }}{% set rest, before = messages, '' %}{% if messages[0].role == 'system' %}"
    f"{{% set rest, before = messages[1:], messages[0].content + '\n\n' %}}{{% endif %}}{GEMMA_TURNS}"
)
GEMMA_4 = (
    "{{ bos_token }}{% set rest = messages %}{% if messages[0].role == 'system' or tools %}{{ '<|turn>system\n' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% set rest = messages[1:] %}{% endif %}"
    "{% for tool in tools or [] %}<|tool>declaration:{{ tool.function.name }}{{ '{' }}description:"
    "<|\"|>{{ tool.function.description }}<|\"|>}<tool|>{% endfor %}{{ '<turn|>\n' }}{% endif %}"
    "{% for m in rest %}{% if m.role == 'tool' %}"
    '<|tool_response>response:{{ m.name }}{{ "{" }}value:<|"|>{{ m.content }}<|"|>}<tool_response|>{% else %}'
    "<|turn>{{ 'model' if m.role == 'assistant' else m.role }}{{ '\n' }}"
    "{% if m.reasoning_content %}{{ '<|channel>thought\n' + m.reasoning_content + '<channel|>' }}{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<|tool_call>call:{{ c.function.name }}{{ '{' }}"
    "{% for key, value in c.function.arguments.items() %}{{ key }}:"
    "{{ '<|\"|>' + value + '<|\"|>' if value is string else value | tojson }}"
    "{% if not loop.last %},{% endif %}{% endfor %}}<tool_call|>{% endfor %}"
    "{{ '<turn|>\n' }}{% endif %}{% endfor %}{{ '<|turn>model\n' }}"
)
PHI_4 = (
    "{% for m in messages %}{% if m.role in ('system', 'user', 'assistant') %}"
    "<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)
GPT_OSS = (
    "{% set ns = namespace(called=none) %}{% set rest = messages %}"
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort | default('medium') }}<|end|>"
    "{% if messages[0].role == 'system' or tools %}{{ '<|start|>developer<|message|>' }}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% set rest = messages[1:] %}{% endif %}"
    "{% for tool in tools or [] %}// {{ tool.function.description }}{{ '\n' }}type {{ tool.function.name }} = (_: "
    "{% for key in tool.function.parameters.properties %}{{ key }}: any, {% endfor %}) => any;{{ '\n' }}{% endfor %}"
    "<|end|>{% endif %}{% for m in rest %}{% if m.role == 'assistant' %}{% if 'tool_calls' in m %}"
    "{% if m.content and m.thinking %}{{ raise_exception('Cannot pass both content and thinking') }}{% endif %}"
    "{% if m.content or m.thinking %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.content or m.thinking }}<|end|>{% endif %}"
    "{% set ns.called = m.tool_calls[0].function.name %}"
    "<|start|>assistant to=functions.{{ ns.called }}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% elif m.role == 'tool' %}{% if ns.called is none %}{{ raise_exception('There was no tool call!') }}{% endif %}"
    "<|start|>functions.{{ ns.called }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>"
    "{% elif m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
DEEPSEEK_R1 = (
    "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.system = m.content %}{% endif %}{% endfor %}{{ bos_token }}{{ ns.system }}{% for m in messages %}"
    "{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% elif m.role == 'tool' %}"
    "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
    "{% elif m.tool_calls %}<｜Assistant｜><｜tool▁calls▁begin｜>{% for c in m.tool_calls %}"
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c.function.name }}{{ '\n```json\n' }}"
    "{{ c.function.arguments | tojson }}{{ '\n```' }}<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>"
    "{% elif m.role == 'assistant' %}<｜Assistant｜>{{ m.content.split('</think>')[-1] }}<｜end▁of▁sentence｜>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜><think>\n' }}{% endif %}"
)
GRANITE_4 = (
    chatml(HERMES_TOOLS, HERMES_CALLS)
    .replace("<|im_start|>{{ m.role }}{{ '\n' }}", "<|start_of_role|>{{ m.role }}<|end_of_role|>")
    .replace("<|im_start|>system{{ '\n' }}", "<|start_of_role|>system<|end_of_role|>")
    .replace("<|im_start|>assistant{{ '\n' }}", "<|start_of_role|>assistant<|end_of_role|>")
    .replace("<|im_start|>user", "<|start_of_role|>user<|end_of_role|>")
    .replace("<|im_end|>", "<|end_of_text|>")
)
LFM_2 = (
    "{{ bos_token }}{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% if system or tools %}<|im_start|>system{{ '\n' }}{{ system }}{% if tools %}"
    "{{ '\nList of tools: <|tool_list_start|>' }}{{ tools | tojson }}<|tool_list_end|>{% endif %}<|im_end|>{{ '\n' }}"
    "{% endif %}{% for m in messages %}{% if not (loop.first and m.role == 'system') %}"
    "<|im_start|>{{ m.role }}{{ '\n' }}{% if m.role == 'tool' %}"
    "<|tool_response_start|>{{ m.content }}<|tool_response_end|>{% else %}{{ m.content }}"
    f"{{% endif %}}<|im_end|>{{{{ '\n' }}}}{{% endif %}}{{% endfor %}}{CHATML_ANSWER}"
)
SMOL_LM_3 = chatml(HERMES_TOOLS, "", system="", answer=SWITCHED, said=REASONING)
GLM_4_5 = (
    "[gMASK]<sop>{% if tools %}{{ '<|system|>\n<tools>' }}"
    f"{SCHEMAS}{{{{ '\n</tools>\n<tool_call>{{name}}\n<arg_key>...' }}}}{{% endif %}}{{% for m in messages %}}"
    "{% if m.role == 'tool' %}{{ '<|observation|>\n<tool_response>\n' }}{{ m.content }}{{ '\n</tool_response>' }}"
    "{% else %}<|{{ m.role }}|>{{ '\n' }}{% if m.role == 'assistant' %}<think></think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '\n<tool_call>' }}{{ c.function.name }}"
    "{% for key, value in c.function.arguments.items() %}{{ '\n<arg_key>' }}{{ key }}</arg_key>{{ '\n<arg_value>' }}"
    "{{ value if value is string else value | tojson }}</arg_value>{% endfor %}{{ '\n</tool_call>' }}{% endfor %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is defined and not "
    "enable_thinking %}{{ '\n<think></think>' }}{% endif %}{% endif %}"
)
COMMAND_R7B = (
    "{{ bos_token }}{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>{% for tool in tools or [] %}"
    "{{ {'name': tool.function.name, 'description': tool.function.description} | tojson }}{% endfor %}{{ system }}"
    "<|END_OF_TURN_TOKEN|>{% for m in messages %}{% if not (loop.first and m.role == 'system') %}"
    "<|START_OF_TURN_TOKEN|>{% if m.role in ('system', 'tool') %}<|SYSTEM_TOKEN|>{{ m.content }}"
    "{% elif m.role == 'user' %}<|USER_TOKEN|>{{ m.content }}{% elif m.tool_calls %}<|CHATBOT_TOKEN|>"
    "<|START_THINKING|>{{ m.content }}<|END_THINKING|><|START_ACTION|>{{ '[' }}{% for c in m.tool_calls %}"
    '{{ \'{"tool_call_id": "0", "tool_name": "\' + c.function.name + \'", "parameters": \' }}'
    "{{ c.function.arguments | tojson }}}{% endfor %}]<|END_ACTION|>"
    "{% else %}<|CHATBOT_TOKEN|><|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>{% endif %}<|END_OF_TURN_TOKEN|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
)
SMOL_LM_2 = f"{{% for m in messages %}}{CHATML}{{% endfor %}}{CHATML_ANSWER}"
VISION = SMOL_LM_2.replace("{{ m.content }}", "{% for part in m.content %}{{ part.text }}{% endfor %}")

FAMILIES = {
    "Qwen 2.5": chatml(HERMES_TOOLS, HERMES_CALLS),
    "Qwen 3": chatml(HERMES_TOOLS, HERMES_CALLS, answer=SWITCHED, said=REASONING),
    "Qwen 3.5": ASKED + chatml(CODER_TOOLS, CODER_CALLS, system=NOT_FIRST, answer=OPENED, said=REASONING),
    "Qwen3-Coder": chatml(CODER_TOOLS, CODER_CALLS),
    "Llama 3": LLAMA_3_0,
    "Llama 3.1, 3.2, 3.3": LLAMA_3_1,
    "Mistral, v3 tokenizer": MISTRAL_V3,
    "Mistral, v7 tokenizer": MISTRAL_V7,
    "Gemma 2": GEMMA_2,
    "Gemma 3": GEMMA_3,
    "Gemma 4": GEMMA_4,
    "Phi-4": PHI_4,
    "gpt-oss": GPT_OSS,
    "DeepSeek R1 distils": DEEPSEEK_R1,
    "Granite 4": GRANITE_4,
    "LFM2": LFM_2,
    "Command R7B": COMMAND_R7B,
    "SmolLM2": SMOL_LM_2,
    "SmolLM3": SMOL_LM_3,
    "GLM 4.5": GLM_4_5,
    "Vision models": VISION,
}
