"""Words to invent from. Those of `Names` are split by a hash, so that the evaluation meets words training never saw."""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return text.split()


CITIES = [
    c.replace("_", " ")
    for c in _words(
        """
    Tallinn Oslo Rome Paris Lagos Lima Quito Perth Osaka Kyoto Seoul Hanoi Delhi Mumbai Dhaka Cairo Tunis Accra
    Dakar Nairobi Kampala Lusaka Harare Berlin Munich Hamburg Cologne Vienna Graz Zurich Geneva Basel Lyon Nice
    Lille Madrid Seville Bilbao Lisbon Porto Dublin Cork London Leeds Bristol Glasgow Cardiff Bergen Malmo Uppsala
    Turku Riga Vilnius Warsaw Gdansk Prague Brno Budapest Sofia Varna Athens Ankara Izmir Beirut Amman Doha Dubai
    Muscat Karachi Lahore Kabul Tashkent Almaty Manila Cebu Jakarta Bandung Hobart Sydney Auckland Suva Toronto
    Ottawa Calgary Boston Denver Dallas Austin Seattle Portland Chicago Atlanta Miami Havana Bogota Cali Medellin
    Santiago Rosario Montevideo New_York San_Diego Cape_Town Hong_Kong Buenos_Aires Los_Angeles
    """
    )
]
FIRST = _words(
    """
    Anna Tom Maria Peter Lena Omar Priya Wei Yuki Carlos Ines Noah Emma Liam Olga Ivan Fatima Ahmed Sara David Julia
    Mark Nina Paul Rosa Sven Tara Ugo Vera Walt Xena Yara Zoe Ben Clara Dana Erik Finn Gina Hugo Iris Jonas Kira Leo
    Mona Nico Oscar Pia Quinn Ralph Sofia Tim Ulla Victor Wendy Abel Bella Chen Diego Elif Femi Grace Hana Igor Jack
    Kofi Lucy Mia Nora Otto
    """
)
ZONES = {
    "Tokyo": "Asia/Tokyo",
    "Berlin": "Europe/Berlin",
    "London": "Europe/London",
    "Paris": "Europe/Paris",
    "Madrid": "Europe/Madrid",
    "Rome": "Europe/Rome",
    "Vienna": "Europe/Vienna",
    "Oslo": "Europe/Oslo",
    "Stockholm": "Europe/Stockholm",
    "Helsinki": "Europe/Helsinki",
    "Warsaw": "Europe/Warsaw",
    "Prague": "Europe/Prague",
    "Athens": "Europe/Athens",
    "Dublin": "Europe/Dublin",
    "Lisbon": "Europe/Lisbon",
    "Zurich": "Europe/Zurich",
    "Brussels": "Europe/Brussels",
    "Amsterdam": "Europe/Amsterdam",
    "Istanbul": "Europe/Istanbul",
    "Moscow": "Europe/Moscow",
    "New York": "America/New_York",
    "Chicago": "America/Chicago",
    "Denver": "America/Denver",
    "Los Angeles": "America/Los_Angeles",
    "Toronto": "America/Toronto",
    "Mexico City": "America/Mexico_City",
    "Sao Paulo": "America/Sao_Paulo",
    "Lima": "America/Lima",
    "Bogota": "America/Bogota",
    "Sydney": "Australia/Sydney",
    "Melbourne": "Australia/Melbourne",
    "Perth": "Australia/Perth",
    "Auckland": "Pacific/Auckland",
    "Seoul": "Asia/Seoul",
    "Shanghai": "Asia/Shanghai",
    "Beijing": "Asia/Shanghai",
    "Hong Kong": "Asia/Hong_Kong",
    "Singapore": "Asia/Singapore",
    "Dubai": "Asia/Dubai",
    "Mumbai": "Asia/Kolkata",
    "Delhi": "Asia/Kolkata",
    "India": "Asia/Kolkata",
    "Japan": "Asia/Tokyo",
    "Karachi": "Asia/Karachi",
    "Bangkok": "Asia/Bangkok",
    "Jakarta": "Asia/Jakarta",
    "Manila": "Asia/Manila",
    "Cairo": "Africa/Cairo",
    "Lagos": "Africa/Lagos",
    "Nairobi": "Africa/Nairobi",
    "Johannesburg": "Africa/Johannesburg",
    "UTC": "UTC",
    "GMT": "UTC",
    "San Francisco": "America/Los_Angeles",
    "Germany": "Europe/Berlin",
    "Copenhagen": "Europe/Copenhagen",
}
UNITS = [  # what is converted into each other
    _words("miles kilometers km meters feet inches cm yards mm centimeters"),
    _words("miles km feet meters"),
    _words("kg pounds ounces grams tons stone lb kilograms"),
    _words("liters gallons cups ml"),
    _words("celsius fahrenheit kelvin"),
    _words("C F"),
    _words("seconds minutes hours days weeks"),
    _words("mph km/h knots"),
    _words("acres hectares"),
    _words("joules calories"),
    _words("psi bar"),
    _words("bytes kilobytes MB GB"),
]
VERBS = {  # canonical action: (tool-name verbs, user verbs)
    "get": (
        _words("get fetch lookup show check read find query retrieve"),
        ["get", "show me", "look up", "check", "fetch", "find", "tell me", "give me"],
    ),
    "create": (_words("create add new make open register"), ["create", "add", "make", "open", "set up", "register"]),
    "delete": (_words("delete remove erase drop clear"), ["delete", "remove", "erase", "get rid of", "clear"]),
    "update": (_words("update set change modify edit adjust"), ["update", "set", "change", "modify", "adjust", "edit"]),
    "send": (_words("send deliver post forward dispatch"), ["send", "deliver", "post", "dispatch"]),
    "book": (_words("book reserve order request"), ["book", "reserve", "order", "request"]),
    "cancel": (_words("cancel revoke abort"), ["cancel", "call off", "revoke", "abort"]),
    "start": (
        _words("start launch run begin enable activate"),
        ["start", "launch", "run", "turn on", "activate", "begin"],
    ),
    "stop": (_words("stop halt end disable pause"), ["stop", "halt", "turn off", "pause", "end"]),
    "list": (_words("list enumerate search"), ["list", "show all", "search", "list all"]),
    "track": (_words("track follow locate monitor"), ["track", "follow", "locate", "monitor"]),
    "schedule": (_words("schedule plan arrange"), ["schedule", "plan", "arrange"]),
}
NOUNS = _words(
    """
    weather ticket order invoice customer meeting reminder alarm flight hotel room table taxi recipe song playlist
    movie book article report shipment parcel refund payment account balance password user employee contact task
    project sprint bug issue build server database backup snapshot container pipeline sensor heater lamp light
    thermostat camera door lock window garage garden sprinkler oven fridge robot drone vehicle car bike route
    traffic parking charger battery meter pump valve motor fan printer scanner file folder note document email
    message call event calendar deadline budget expense receipt coupon discount product stock price quote currency
    loan tax insurance policy claim contract license permit visa passport course lesson exam grade student teacher
    class quiz score game match team player ticket seat concert museum tour trip bus train ferry appointment
    prescription patient doctor clinic symptom diet workout run step sleep heart pulse medication vaccine dog cat
    plant tree crop harvest soil rain storm tide moon star news headline joke word synonym translation language
    dictionary summary survey vote poll comment review rating feed blog page site domain certificate token key
    session log metric alert incident outage deployment release branch commit repository queue job worker thread
    cache index
    """
)
ADJS = _words(
    """
    daily weekly monthly annual spare backup default maximum minimum total average current initial final internal
    external primary secondary remote local public private shared standard special nominal expected approved
    official preferred manual automatic safe
    """
)
GENERIC = _words(
    """
    interval filter code cable valve budget capacity pressure voltage channel color format label mode number
    password path port priority profile rate region role route schedule size speed status supplier temperature
    threshold timeout unit version volume weight width zone limit address owner contact location frequency duration
    color deposit fee fine discount quota duty shift badge locker key
    """
)
MONTHS = _words("January February March April May June July August September October November December")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
COLORS = _words("red blue green black white silver orange purple yellow grey teal brown pink gold amber")
ROOMS = [
    "kitchen",
    "living room",
    "bedroom",
    "office",
    "garage",
    "hallway",
    "bathroom",
    "basement",
    "attic",
    "lobby",
    "lab",
    "workshop",
]
ON = _words("b br c ch d dr f fl g gr h j k kl l m n p pr qu r s sh sk st t th tr v w z")
VO = _words("a e i o u a e i o ai ea oo ia")
CO = ["", "", "", "n", "r", "l", "x", "s", "m", "k", "nd", "rt", "st", "v", "th", "lm", "rn", "ss", "d"]
SUFFIX = _words(
    "Labs Systems Works Group Industries Foods Robotics Energy Logistics Media Bank Studio Health Motors Partners"
)
THING = _words(
    """
    Router Sensor Pump Drone Camera Heater Printer Tablet Speaker Lamp Kettle Blender Mower Bike Scooter Engine
    Server Gateway Scanner Monitor Charger Battery Valve Controller Thermostat Freezer Drill Tractor Kayak Tent
    """
)
ROLES = [
    "head of sales",
    "data engineer",
    "office manager",
    "chief accountant",
    "lead designer",
    "support agent",
    "site supervisor",
    "security officer",
    "research chemist",
    "night nurse",
    "product owner",
    "warehouse planner",
    "legal adviser",
    "staff trainer",
    "field technician",
    "museum curator",
    "pilot",
    "head chef",
    "librarian",
    "network architect",
]
HOBBIES = [
    "chess",
    "sailing",
    "pottery",
    "rock climbing",
    "bird watching",
    "baking",
    "cycling",
    "gardening",
    "fencing",
    "origami",
    "astronomy",
    "woodwork",
    "surfing",
    "knitting",
    "archery",
    "jazz piano",
]
# Words that say nothing of what a sentence is about, and words at its start that point to the sentence before.
STOP = frozenset(
    _words(
        """
        a all also and any are as at be but by can did do does each for from has have if in into is it its may must
        no not of on one only or other should such than that the their then there this to use used using was were
        when which will with you your
        """
    )
)
POINTING = frozenset(_words("It This These They There If That You He We In As When For Note See"))
HOLDING = _words("hold need use sell make show store serve move keep take contain produce support cover")
HAPPENING = _words("open close start end leave arrive run begin stop return update restart")
DONE = _words(
    "built founded opened closed cleaned checked serviced repaired renewed painted tested moved planned restarted"
)
OFFICES = _words("owner director manager engineer captain author editor keeper chief chair designer teacher")
VAGUE = frozenset(  # that nobody names who asks about a sentence
    _words(
        """
        about after again also always another because been before between both does each either else even every from
        have here into itself just like many more most much must need needs never none often once only other others
        over same should since some still such than that their them then there these they this those through under
        until very well were what when where whether which while will with without would your
        """
    )
)
