"""Built-in calibration text: questions and answers, prose, code, numbers, several languages."""

CONVERSATIONS = (
    (
        "Why is the sky blue during the day and red in the evening?",
        "Air scatters short waves of light more strongly than long ones, so blue light reaches us "
        "from every direction. In the evening the light crosses far more air; most of the blue is "
        "gone before it arrives, and red is left.",
    ),
    (
        "Write a Python function that returns the n-th Fibonacci number without recursion.",
        "```python\ndef fibonacci(n: int) -> int:\n    first, second = 0, 1\n    for _ in "
        "range(n):\n        first, second = second, first + second\n    return first\n```\nIt "
        "takes n additions and constant space.",
    ),
    (
        "A train leaves at 14:35 and arrives at 17:10. How long does it travel, and how fast is it on 194 km?",
        "From 14:35 to 17:10 are 2 hours and 35 minutes, which is 155 minutes. 194 km / 155 min * 60 = 75.1 km/h.",
    ),
    (
        "Fasse in zwei Sätzen zusammen, was ein Betriebssystem tut.",
        "Ein Betriebssystem verteilt Rechenzeit, Speicher und Geräte auf die laufenden Programme "
        "und schützt sie voreinander. Außerdem bietet es ihnen Dateien, Netze und Fenster unter "
        "einheitlichen Namen an.",
    ),
    (
        "Give me three ideas for a quick vegetarian dinner. Answer as a JSON list.",
        '["lentil soup with lemon and bread", "fried rice with egg, peas and spring onion", "baked '
        'potatoes with herb curd"]',
    ),
    (
        "Translate into French and Spanish: The shop opens at nine and closes when the last customer has left.",
        "Français : Le magasin ouvre à neuf heures et ferme quand le dernier client est parti.\n"
        "Español: La tienda abre a las nueve y cierra cuando se ha ido el último cliente.",
    ),
    (
        "What does this regular expression match: ^[A-Z]{2}\\d{2}(?:\\s?\\d{4}){4}$",
        "Two capital letters, two digits, then four groups of four digits, each of which may "
        "follow one blank. It looks like a bank account number of 22 characters, such as a German "
        "IBAN.",
    ),
    (
        "My plant has yellow leaves. What should I check first?",
        "1. Water: is the soil wet below the surface? Too much water is the most common cause.\n2. "
        "Light: has it been moved lately?\n3. Roots: do they grow out of the pot?\n4. Food: when "
        "was it last fed?\nChange one thing at a time.",
    ),
    (
        "Explain the difference between a process and a thread to a beginner.",
        "A process is a program at work with memory of its own. A thread is one line of work "
        "inside it; threads of a process share its memory. So threads can talk to each other "
        "cheaply, but a mistake in one can hurt them all.",
    ),
    (
        "Who wrote 'The Metamorphosis', and when was it published?",
        "Franz Kafka wrote it in 1912; it was published in 1915.",
    ),
    (
        "请用一句话解释什么是光合作用。",
        "光合作用是植物利用阳光把水和二氧化碳变成糖分并放出氧气的过程。",
    ),
    (
        "Сколько будет 17 умножить на 24?",
        "17 · 24 = 17 · 20 + 17 · 4 = 340 + 68 = 408.",
    ),
)

DOCUMENTS = (
    "The ferry to the island runs four times a day in summer and once in winter. In March, when "
    "the ice breaks, it does not run at all, and the islanders live on what they stored: potatoes, "
    "dried fish, flour, and the letters of the year before, which they read aloud to each other. "
    "The schoolteacher keeps a list of the birds that return. In 1987 the first lark came on the "
    "2nd of March; in 2019 it came on the 11th of February.",
    "import csv\nfrom collections import Counter\nfrom pathlib import Path\n\n\ndef "
    "count_words(folder: Path) -> Counter[str]:\n    total: Counter[str] = Counter()\n    for path "
    "in sorted(folder.glob('*.txt')):\n        with path.open(encoding='utf-8') as "
    "stream:\n            for line in stream:\n                "
    "total.update(word.strip('.,;:!?').lower() for word in line.split())\n    return total\n\n\nif "
    "__name__ == '__main__':\n    for word, n in "
    "count_words(Path('texts')).most_common(20):\n        print(f'{n:6d}  {word}')\n",
    "| Month | Rain (mm) | Sun (h) | Mean (°C) |\n|---|---:|---:|---:|\n| January | 61.2 | 44 | "
    "-0.4 |\n| April | 38.5 | 171 | 8.9 |\n| July | 77.0 | 223 | 18.6 |\n| October | 49.8 | 109 | "
    "9.5 |\n\nThe year had 1,622 hours of sun and 598.3 mm of rain, 4.1 % less than the mean of "
    "the years 1991 to 2020.",
    "Dear Ms. Okafor,\n\nthank you for your order no. 48-2210 of 3 May. Two of the seven lamps are "
    "in stock and leave our house today; the other five will follow in about three weeks. If you "
    "would rather have everything at once, please let us know by Friday.\n\nWith kind regards\nH. "
    "Lindqvist\n",
    "Théorème. Soit f une fonction continue sur [a, b] telle que f(a) < 0 < f(b). Alors il existe "
    "c dans ]a, b[ avec f(c) = 0. Démonstration : on coupe l'intervalle en deux, on garde la "
    "moitié où f change de signe, et l'on recommence ; les bornes convergent vers un même point, "
    "où f s'annule par continuité.",
    '{"id": 7731, "name": "pump-4", "state": "running", "readings": [{"t": "2024-05-01T06:00:00Z", '
    '"bar": 2.41}, {"t": "2024-05-01T06:05:00Z", "bar": 2.38}], "alarms": [], "owner": {"team": '
    '"water", "phone": "+49 30 1234567"}}',
    "SELECT c.name, COUNT(*) AS orders, SUM(o.total) AS revenue\nFROM customers AS c JOIN orders "
    "AS o ON o.customer_id = c.id\nWHERE o.created_at >= DATE '2023-01-01' AND o.status <> "
    "'cancelled'\nGROUP BY c.name\nHAVING SUM(o.total) > 1000\nORDER BY revenue DESC\nLIMIT 10;",
    "The committee met on Tuesday. Present: seven members, two guests. Item 1: the minutes were "
    "accepted. Item 2: the roof of the hall leaks above the stage; an offer of 12,400 will be "
    "asked for, and a second one for comparison. Item 3: the summer feast is moved to the 21st, "
    "because the band has no other evening. Nobody objected. The meeting closed at a quarter past "
    "nine.",
    "春の朝、港には霧が立ちこめていた。漁師たちは黙って網を積み、灯台の光がゆっくりと消えていくのを待った。",
    "She opened the box. Inside lay a watch, a map of a town she did not know, and a note in her "
    "father's hand: 'Begin at the bridge.' She laughed, then she stopped laughing. The watch was "
    "still going. Who had wound it? Outside, the snow had begun to fall again, and the street was "
    "so quiet that she could hear the ticking from across the room.",
)
