"""Units of measure behind a number, by their shape: powers, products and quotients of known names and symbols.

A symbol of the SI may have a prefix. Units stand inside or outside of ``\\text{...}``. Outside, letters are variables
unless they can hardly be: ``5cm``, ``12 mA`` and ``10 m/s`` have units, ``10 m``, ``2GM`` and ``3 h/t`` have none.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple


def _table(pairs: str) -> dict[str, str]:
    """The words of a text, each with what follows its equals sign, or with itself."""
    return {word: symbol or word for word, _, symbol in (pair.partition("=") for pair in pairs.split())}


_PREFIXES = _table("tera=T giga=G mega=M kilo=k hecto=h deca=da deci=d centi=c milli=m micro=μ nano=n pico=p femto=f")
_PREFIX_SYMBOLS = _table("E P T G M k h da d c m μ u=μ n p f")
_SYMBOLS = _table("m g s A K mol cd Hz N Pa J W C V F Ω S Wb T H lm lx Bq Gy Sv L l=L eV bar cal Wh B b t pc M erg")
_NAMES = _table("""
meter=m metre=m gram=g second=s sec=s ampere=A amp=A kelvin=K mole=mol candela=cd hertz=Hz newton=N pascal=Pa joule=J
watt=W coulomb=C volt=V farad=F ohm=Ω siemen=S weber=Wb tesla=T henry=H lumen=lm becquerel=Bq sievert=Sv liter=L litre=L
electronvolt=eV calorie=cal byte=B bit=b tonne=t parsec=pc molar=M erg
""")
_OTHERS = _table("""
inch=in inche=in in foot=ft feet=ft ft yard=yd yd mile=mi mi pound=lb lb ounce=oz oz ton gallon=gal gal quart=qt qt
pint=pt pt cup tablespoon=tbsp tbsp teaspoon=tsp tsp acre hectare=ha ha minute=min min hour=h hr=h h day=d d week month
year=yr yr decade century centurie=century degree=° deg=° ° radian=rad rad °C °F celsius=°C fahrenheit=°F rpm
revolution=rev rev knot atm torr Torr=torr mmHg psi AU ly u Da dollar=$ USD=$ cent penny=cent pence euro yuan RMB=yuan
yen rupee unit dyne dyn=dyne cycle turn horsepower=hp hp
""")
_COMPOUND = {"mph": "mi / h", "kmph": "km / h", "kph": "km / h", "mpg": "mi / gal", "cc": "cm ^3", "bps": "b / s"}
# Outside of \\text: symbols that nobody takes for a product, and letters below a bar that nobody takes for variables.
_SURE = frozenset(_table("cm mm km kg mL ml dL kJ kW kPa kHz MHz GHz Hz Pa ft yd mi lb oz hr"))
_BELOW = frozenset("smLK")
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}

_DEGREES = re.compile(r"\^\s*\{?\s*\\circ(?![a-zA-Z])\s*\}?|\\degree(?![a-zA-Z])")
_FRACTION = re.compile(r"\\frac\s*\{\s*(\\text\{[^{}]*\})\s*\}\s*\{\s*(\\text\{[^{}]*\})\s*\}")
_POWER = re.compile(r"\^\s*(?:\{\s*(-?\d)\s*\}|(\d)(?!\d))")
_PLAIN_POWER = re.compile(r"\^(-?\d)(?!\d)")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
IN, OUT = "\x01", "\x02"  # around what stands in a text command
_TEMPERATURE = re.compile(rf"°\s*{IN}?\s*([CF])\s*({OUT}?)$")
_TAIL = re.compile(rf"[A-Za-zΩμ°*/^.\-\d\s{IN}{OUT}]*")
_WORD = re.compile(rf"°[CF]?|[A-Za-zΩμ]+|\^-?\d|[*/]|{IN}|{OUT}")
_VALUE = re.compile(r"(?:[\d})\]!%.]|\\pi)\s*$")
_NO_PART = re.compile(r"[\s.-]*")  # between the words of a unit
_DECIMAL = re.compile(r"\s*[-+]?\d[\d.,]*\s*")
_ARGUMENT = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?:\^\d)?\s*[({]?\s*-?[\d.]*\s*$")
_EARLIER = re.compile(rf"\s*{IN}[^{IN}{OUT}]*{OUT}(?:\^-?\d)?|°")


def split_unit(text: str) -> tuple[str, str]:
    """Split off the unit: the text before it, and its canonical name, which is empty if the text has no unit."""
    plain = _POWER.sub(lambda found: f"^{found[1] or found[2]}", _DEGREES.sub("°", _FRACTION.sub(r"\1/\2", text)))
    plain = re.sub(r"\\mu\s*\\text\s*\{\s*", r"\\text{μ", plain).replace(r"\Omega", f"{IN}Ω{OUT}").replace(r"\mu", "μ")
    plain = re.sub(r"\\cdot(?![a-zA-Z])", "*", _TEXT.sub(rf"{IN}\1{OUT}", plain))
    plain = _TEMPERATURE.sub(r"°\1\2", plain)
    for start in re.finditer(rf"{IN}|°|(?<![A-Za-z\\^{IN}])[A-Za-zΩμ]", plain):
        head, tail = plain[: start.start()], plain[start.start() :]
        if head.strip() and (_VALUE.search(head) or tail[0] == IN) and _TAIL.fullmatch(tail):
            if _ARGUMENT.search(head):
                break  # a function's degrees
            name = _name_of(tail, head)
            if name and {_name_of(earlier, "") for earlier in _EARLIER.findall(head)} <= {name, ""}:
                head = _EARLIER.sub(lambda found: "" if _name_of(found[0], "") else found[0], head)
                return _PLAIN_POWER.sub(r"^{\1}", head.replace("*", r"\cdot ")).rstrip(), name
    return text, ""


class _Factor(NamedTuple):
    """A word of a unit with its exponent; whether it stands in a text command, and below a bar."""

    word: str
    power: int
    in_text: bool
    below: bool


def _name_of(tail: str, head: str) -> str:
    """The canonical name of the unit that is all of ``tail``, such as ``km1 s-2``, behind ``head``; empty if none."""
    tail = re.sub(r"[a-z]+", lambda word: _COMPOUND.get(word[0], word[0]), tail)
    if not _NO_PART.fullmatch(_WORD.sub(" ", tail)):
        return ""  # 12 in - 3
    factors, powers = _factors(tail), Counter[str]()
    for factor in factors:
        powers[_symbol_of(factor.word)] += factor.power
    if not factors or "" in powers or _has_variables(factors, tail, head):
        return ""
    if "°C" in powers or "°F" in powers:
        powers.pop("°", None)  # degrees Celsius
    return " ".join(f"{name}{power}" for name, power in sorted(powers.items()) if power) or "1"


def _factors(tail: str) -> list[_Factor]:
    found = list[_Factor]()
    power, in_text, below = 1, False, False
    for word in _WORD.findall(tail):
        if word in (IN, OUT):
            in_text = word == IN
        elif word in ("/", "per"):
            below = True
        elif word.startswith("^") or (found and word in ("squared", "cubed")):
            last = found.pop() if found else _Factor("", 0, in_text, below)
            found.append(last._replace(power=last.power * (_POWERS.get(word) or int(word[1:]))))
        elif word.lower() in _POWERS:
            power = _POWERS[word.lower()]
        elif word != "*":
            found.append(_Factor(word, -power if below else power, in_text, below))
            power, below = 1, False
    return found


def _has_variables(factors: list[_Factor], tail: str, head: str) -> bool:
    """Whether a letter outside of a text command may be a variable: in ``10 m`` and ``3 h/t``, not in ``10 m/s``."""
    is_behind_space = head.endswith(" ")
    sure = [
        each.in_text
        or each.word in _SURE
        or not each.word.isascii()
        or (len(each.word) > 2 and bool(_named(each.word)))
        for each in factors
    ]
    letters = [
        each
        for each, is_sure in zip(factors, sure, strict=True)
        if not is_sure and (len(each.word) == 1 or not (_DECIMAL.fullmatch(head) and is_behind_space))
    ]
    is_quotient = "/" in tail and is_behind_space
    is_usual = is_quotient and (any(sure) or all(not each.below or each.word in _BELOW for each in letters))
    return bool(letters) and not is_usual


def _named(word: str) -> str:
    """The canonical symbol of a unit that is named in full or by a usual abbreviation; empty if the word is none."""
    singular = word.removesuffix("s") if len(word) > 2 else word
    for spelling in dict.fromkeys((word, singular, *((word.lower(), singular.lower()) if len(word) > 2 else ()))):
        known = _OTHERS.get(spelling) or _NAMES.get(spelling)
        if known:
            return known
        for name, prefix in _PREFIXES.items():
            if spelling.startswith(name) and spelling.removeprefix(name) in _NAMES:
                return prefix + _NAMES[spelling.removeprefix(name)]
    return ""


def _symbol_of(word: str) -> str:
    """The canonical symbol of a unit; empty if the word is none. Symbols are case-sensitive: M is not a meter."""
    if known := _named(word):
        return known
    if word in _SYMBOLS:
        return _SYMBOLS[word]
    for symbol, prefix in _PREFIX_SYMBOLS.items():
        if word.startswith(symbol) and word.removeprefix(symbol) in _SYMBOLS:
            return prefix + _SYMBOLS[word.removeprefix(symbol)]
    return ""
