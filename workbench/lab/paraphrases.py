"""A help desk's system prompt and twelve questions to it: paraphrases of a few wishes, and one that comes twice."""

from __future__ import annotations

SYSTEM = (
    "You are the help desk of the city library. You answer in one short sentence. You are friendly, you never guess, "
    "and where you do not know an answer you give the number of the front desk."
)

QUESTIONS = (
    "How do I renew a book?",
    "How can I renew a book?",
    "Can I renew my loan online?",
    "I want to keep my book longer, what do I do?",
    "When do you open on Saturday?",
    "when do you open on saturday",
    "Are you open on Saturdays?",
    "How do I renew a book?",
    "What are your hours at the weekend?",
    "Where can I return a book at night?",
    "Is there a way to return books at night?",
    "Can I return a book when you are closed?",
)
