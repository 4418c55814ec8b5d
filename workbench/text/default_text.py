"""A fixed English text on which the loss of a weight format is measured where no other text is given."""

DEFAULT_TEXT = """\
The harbour master kept two clocks on the wall of her office. One showed the time of the town, and the other the \
time of the tide. When a ship was late, she would look first at the second clock, because water waits for nobody \
and a captain who misses the tide has to wait for the next one, twelve hours and twenty-five minutes later. In \
winter the fishing boats went out before dawn. Their lamps moved along the breakwater like a string of beads, \
and by the time the bakery opened its door they were only points of light on the dark line between the sea and \
the sky.

A tide is the rise and fall of the sea. It is caused mainly by the gravity of the moon and, to a lesser degree, \
by that of the sun. When the two pull along the same line, at new moon and at full moon, the difference between \
high and low water is largest; these are called spring tides, although they have nothing to do with the season. \
Halfway between them come the neap tides, when the difference is smallest. The height of the water also depends \
on the shape of the coast. In a narrow bay that becomes shallow towards its end, the water is pushed together \
and may rise by more than ten metres.

"How much is a ticket to the island?" asked the boy.

"Four coins there, three coins back," said the man behind the counter. "If you buy both together, it is six. \
Children under seven travel free, but they have to sit with somebody who paid."

"I am nine," said the boy, and counted what he had. "Then I can go there, but I cannot come back."

"You would not be the first," said the man.

The following function adds up the fares of a group of passengers. It expects a list of ages and returns the \
total price in coins.

def total_fare(ages, return_trip=False):
    price = 6 if return_trip else 4
    total = 0
    for age in ages:
        if age >= 7:
            total += price
    return total

For a family of two adults and three children aged four, eight and eleven, a return trip costs 24 coins, since \
only the youngest child travels free. Without the return trip it costs 16 coins. In the year 1897 the ferry \
carried 2,140 people; ten years later it carried more than three times as many, and the company bought a second \
boat. The new boat was longer, faster and painted white. The old one was used for goods, for the post and, on \
Sundays, for the brass band of the town, which played on its deck while it slowly went round the island.
"""
