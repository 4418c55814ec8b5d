"""Forty varied prompts for the default model: 1 to 600 tokens, Korean, emoji, code, tables, a single token."""

from __future__ import annotations

_STORY = (
    "When the ferry reached the island the rain had stopped, and the whole harbour smelled of wet rope and oranges. "
    "Mina counted the steps up to the lighthouse, as she did every year, and lost count somewhere after two hundred. "
    "The keeper was waiting at the door with a lamp in one hand and a letter in the other. "
)
_KOREAN = (
    "서울은 한강을 따라 발전한 도시이다. 봄에는 벚꽃이 피고 가을에는 은행나무가 노랗게 물든다. "
    "사람들은 주말마다 산에 오르고, 저녁에는 시장에서 따뜻한 국수를 먹는다. "
)
_CODE = '''def fibonacci(n: int) -> list[int]:
    """The first n Fibonacci numbers."""
    numbers = [0, 1]
    while len(numbers) < n:
        numbers.append(numbers[-1] + numbers[-2])
    return numbers[:n]


'''

SHORT: list[str | list[int]] = [
    [28],
    "The",
    "The capital of France is",
    "안녕하세요",
    "🙂🚀 emoji are",
    "def add(a, b):\n    return",
    "1, 2, 3, 5, 8, 13,",
    "Q: What is the boiling point of water?\nA:",
    "<|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n",
    "    leading spaces  and   runs of them",
    "수도는",
    "SELECT name, age FROM people WHERE",
]
"""Twelve short ones, the first a single token given by its id."""

LONG: list[str | list[int]] = [
    "\n",
    "é",
    "x",
    "Once upon a time",
    "In 1969, the first",
    "한국의 수도는 서울이고, 일본의 수도는",
    "Translate to French: good morning →",
    "日本語のテキスト: 今日は",
    "Привет, как",
    "مرحبا بالعالم",
    "👨‍👩‍👧‍👦 and 🏳️‍🌈 are sequences of",
    "The price rose from $1,234.56 to $7,890.12, a change of",
    "for (int i = 0; i < n; i++) {\n    sum +=",
    '{"name": "Ada", "born": 1815, "languages": ["',
    "<html>\n  <head>\n    <title>",
    "| city | people |\n|---|---|\n| Seoul | 9,400,000 |\n| Busan |",
    "\\int_0^1 x^2 \\, dx =",
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    "tab\tseparated\tvalues\n1\t2\t",
    "a b c d e f g h i j k l m n o p q r s t u v w x y",
    _KOREAN,
    _STORY,
    _CODE + "def factorial(n: int) -> int:\n",
    _STORY * 2 + "The letter said:",
    _KOREAN * 2,
    _CODE * 3 + "print(fibonacci(",
    _STORY * 4 + "Then",
    _STORY * 8 + _CODE + "At last",
]
"""Twenty-eight more, the last close to 600 tokens."""

ALL = SHORT + LONG
