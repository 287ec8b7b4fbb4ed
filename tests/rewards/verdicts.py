r"""What the math reward says of answers: a label, and the contents of boxes that are right and wrong for it.

The labels are written as data sets write them (MATH, AIME, Minerva, OlympiadBench). `LIMITS` are pairs whose verdict a
careful grader would not share; docs/rewards.md lists them.
"""

TABLE: list[tuple[str, list[str], list[str]]] = [
    # numbers
    ("7", ["7", " 7 ", "+7", "007", "{7}", "(7)", "3 + 4", "7.0"], ["8", "77", "71"]),
    ("-3", ["-3", "−3"], ["3"]),  # the typographic minus
    ("100000000000000000000", [], ["100000000000000000001"]),
    ("3628800", ["10!"], []),
    ("2.5", ["2.50", r"2\frac{1}{2}", "2 1/2", r"2\frac12"], []),
    ("3.1416", [], ["3.14"]),
    ("7.1", [], ["7.0000001"]),
    ("0.0000003", [], ["0.0000002"]),
    ("0.0000001", [], ["0"]),
    ("123456.788", [], ["123456.789"]),
    (r"\frac{1}{3}", [r"0.\overline{3}", "0.333333"], ["0.3333", "0.33"]),  # six digits
    (r"-\frac{7}{6}", [r"-1.1\overline{6}"], []),
    ("1", [r".\overline{9}", r"\ln e", r"\sin^2 x+\cos^2 x", r"2\cdot\frac{1}{2}"], [r"2\frac{1}{2}"]),  # no product
    ("0.3", [], [r"0.\overline{3}"]),
    ("1234", ["1,234", "1{,}234"], ["1,235", "(1,234)", "1, 234"]),  # a point; two numbers
    ("12345", [r"12\,345", "12 345"], []),
    ("12345678", [r"12\ 345\ 678"], []),
    ("1234567.5", ["1,234,567.5"], []),
    ("120000", [r"1.2\times10^5"], []),
    ("870000000", [r"8.7\times 10^8", "8.7e8"], [r"8.71\times 10^8", r"8.7\times 10^7"]),
    (r"2.998\times 10^{10}", ["29980000000"], ["29980000001000"]),
    (r"1.2\times 10^5", [r"1.2 \cdot 10^{5}"], []),
    (r"6\times10^{23}", ["6×10^{23}"], []),
    (r"1.6\times 10^{-19}", [r"1.6\times10^{-19}"], [r"1.7\times10^{-19}"]),
    ("0.00000016", [r"1.6\times10^{-7}"], [r"1.6\times10^{-8}"]),
    (r"6.63\times10^{-34}", ["6.63e-34"], []),
    ("1001_{2}", ["1001_2"], []),
    ("1001_2", ["1001"], ["1001_3", "9"]),
    ("a_2", [], ["a_1"]),
    ("2a", [], ["2a_1"]),
    # fractions and percent
    ("0.5", [".5", r"\frac{1}{2}", r"x = 50\%", "2^{-1}", r"\sin\frac{\pi}{6}"], ["0.51", "50"]),
    (r"\frac{1}{2}", [r"\frac12", r"50\%", r"\displaystyle\frac{1}{2}", r"\left(\frac{1}{2}\right)"], [r"\frac{2}{1}"]),
    ("3/4", [r"\dfrac{3}{4}", r"\tfrac{3}{4}", r"\frac{6}{8}", "0.75"], []),
    (r"-\frac{1}{2}", [r"\frac{-1}{2}", r"\frac{1}{-2}"], []),
    ("-2.5", [r"-2\frac{1}{2}"], []),
    (r"50\%", [r"50\%", "50", "0.5"], [r"51\%", r"0.5\%"]),
    ("50", [r"50\%", r"50\text{ percent}"], [r"0.5\%"]),
    ("0.095", ["9.5%"], []),
    # units
    ("5", [r"5\text{ cm}", r"5 \mathrm{~cm}", r"\$5", r"\{5\}"], [r"5\text{ or maybe }6", r"\displaystyle .5"]),
    (r"5\text{ cm}", ["5 cm", "5", r"5\text{ centimeters}"], [r"5\text{ m}"]),
    ("12", [r"12\text{ cm}^2"], []),
    (r"12\text{ cm}^2", [r"12\text{ square cm}"], [r"12\text{ cm}^3"]),
    (r"60\text{ miles per hour}", ["60 mph"], []),
    (r"60\text{ meters per second}", [r"60\text{ m/s}"], []),
    ("9.8", [r"9.8 \mathrm{~m}/\mathrm{s}^2"], []),
    ("90", [r"90^\circ", "90°"], []),
    (r"90^\circ", [r"90^{\circ}", "90 degrees"], []),
    (r"\$5", ["5 dollars"], []),
    ("1234.5", [r"\$1{,}234.50"], []),
    (r"\frac{\pi}{2}", [r"\frac{\pi}{2}\text{ units}"], []),
    # roots, powers, constants and functions
    (r"2\sqrt{2}", [r"\sqrt{8}", r"\sqrt8"], []),
    ("3", [r"\sqrt[3]{27}", r"\log_2 8", "|-3|"], ["3t"]),
    (r"\frac{\sqrt{2}}{2}", [r"\frac{1}{\sqrt{2}}"], []),
    (r"\sqrt{5}", [], [r"\sqrt{2}+\sqrt{3}"]),
    (r"\sqrt{2}-1", [r"\sqrt{3-2\sqrt{2}}"], []),
    ("1.41421", [], [r"\sqrt{2}"]),
    ("2", [], [r"\sqrt{2}", r"\pm 2", "2m"]),  # m is a variable
    ("1024", ["2^{10}", "2^10", "2**10"], []),
    ("2^{10}", ["4^5"], []),
    ("4", [r"8^{2/3}"], []),
    ("2^{101}", [], ["2^{100}"]),
    (r"\pi \cdot 2", [r"2\pi"], []),
    (r"2\pi", ["2π"], []),
    ("1.570796", [r"\frac{\pi}{2}"], []),
    (r"\pi", [], ["3.14", r"\frac{22}{7}"]),
    ("180", [], [r"\pi"]),
    (r"3\ln 2", [r"\ln 8"], []),
    (r"\log_{10} 2", [], [r"\ln 2"]),
    (r"\infty", [r"\infty"], [r"-\infty"]),
    ("4i+3", ["3+4i"], []),
    (r"2+i\sqrt{3}", [r"2+\sqrt{3}i"], []),
    ("2i", ["(1+i)^2"], []),
    ("i", [r"\sqrt{-1}"], []),
    ("-1", [r"e^{i\pi}"], []),
    ("3+4i", [], ["3-4i"]),
    ("-i", [r"\frac{1}{i}"], []),
    ("2,-2", [r"\pm 2"], []),
    (r"1+\sqrt{2}, 1-\sqrt{2}", [r"1\pm\sqrt{2}"], []),
    (r"\pm 2", [], ["2"]),
    # intervals and inequalities
    ("(1, 2)", ["(1,2)"], []),
    ("[1,2)", ["[1,2)"], ["[1,2]"]),
    ("[1,2]", [r"x\in[1,2]"], ["(1,2)"]),
    (r"(-\infty,3)", [r"(-\infty, 3)", "(-∞, 3)", "x<3"], [r"(-\infty, 3]"]),
    ("x<3", [r"(-\infty,3)", "3>x"], [r"x\le 3", "x>3"]),
    ("(1,3)", ["1<x<3"], []),
    (r"(2,\infty)\cup(-\infty,1)", [r"(-\infty,1)\cup(2,\infty)"], [r"(-\infty,1]\cup(2,\infty)"]),
    (r"(-\infty,1)\cup(2,\infty)", [], [r"(-\infty,1)"]),
    (r"x\leq 3", [r"x\le 3"], []),
    (r"x \leq 3", ["x≤3"], []),
    # sets, lists, tuples and matrices
    (r"\{2,1\}", [r"\{1,2\}"], []),
    (r"\{1,2\}", [r"\left\{1, 2\right\}", "1,2"], [r"\{1,2,3\}", r"\{1\}", "(1,2)"]),
    ("1, 2", ["2, 1"], []),
    ("1,2", [r"1 \text{ and } 2", "x=1, x=2", r"x = 1 \text{ or } x = 2"], ["1"]),
    (r"1\text{ or }2", [r"2\text{ or }1"], []),
    (r"\{3, 0.5\}", [r"\{\frac12, 3\}"], []),
    (r"\{\}", [r"\emptyset"], []),
    (r"\emptyset", [r"\varnothing"], []),
    ("(2,1)", ["(2,1)"], ["(1,2)", "(3,1)"]),
    ("(1,2,3)", ["(1,2,3)"], ["(1,3,2)"]),
    (r"(\frac{1}{2}, 3)", ["(0.5, 3)"], []),
    ("(1,2)", [r"\langle 1,2\rangle", "1,2", r"\left(1, 2\right)"], [r"\{1,2\}", "2,1"]),
    (r"\left( 3, \frac{\pi}{2} \right)", [r"(3, \frac{\pi}{2})"], []),
    (r"(1.7\times10^{-19}, 5, 0)", [], [r"(1.6\times10^{-19}, 5, 0)"]),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", [r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"], []),
    (
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}",
        [r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"],
        [r"\begin{pmatrix}1&2\\3&5\end{pmatrix}", r"\begin{pmatrix}1&3\\2&4\end{pmatrix}"],
    ),
    (r"\begin{pmatrix}1/2\\2\end{pmatrix}", [r"\begin{pmatrix}0.5\\2\end{pmatrix}"], []),
    (r"\begin{pmatrix}1&2\end{pmatrix}", [], [r"\begin{pmatrix}1\\2\end{pmatrix}"]),
    # equations and algebra
    ("5", ["x=5"], ["x=6"]),
    ("x=5", ["5", "x = 5"], ["y=5"]),
    ("2x+1", ["y=2x+1"], []),
    ("y=2x+1", ["y=1+2x", "2x-y+1=0"], ["y=2x+2"]),
    ("x^2", ["f(x)=x^2"], []),
    ("7", ["a+b=7", "2+5=7", r"x=\frac{14}{2}=7", r"\frac{14}{2}=7"], ["8=7", "x=8=7", "2x=7"]),
    ("60", [r"\angle ABC = 60^\circ", r"60\text{ miles per hour}"], []),
    ("x=7", [], ["x=8=7"]),
    ("b=2,a=1", ["a=1,b=2"], []),
    ("3.14", [r"x \approx 3.14"], []),
    (r"\frac{\pi}{4}", [r"\frac{\pi}{4} \approx 0.785"], []),
    ("(x+1)^2", ["x^2+2x+1"], ["x^2+2x+2"]),
    ("x^2-x", ["x(x-1)"], []),
    ("x+1", [r"\frac{x^2-1}{x-1}"], []),
    ("2x", [], ["2y"]),
    ("ab", ["ba"], []),
    ("x", [], ["|x|"]),
    ("10", [r"\binom{5}{2}", r"10\text{ minutes}"], []),
    ("6", [r"\sum_{k=1}^{3}k"], []),
    (r"\frac{n^2+n}{2}", [r"\frac{n(n+1)}{2}"], []),
    # words
    ("east", [r"\text{east}"], []),
    (r"\text{east}", ["East"], ["seat", r"\textbf{west}"]),  # no product of letters
    ("No solution", [r"\text{no solution}"], []),
    ("yes", [r"\text{Yes}"], []),
    ("no", [], ["yes"]),
    (r"\text{no}", [], ["on"]),
    ("A", ["(A)", r"\text{(A)}", "A."], ["B", "A, B", "AB"]),
    ("(A)", [r"\textbf{(A)}"], []),
    (r"\text{Tuesday}", [], [r"\text{Monday}"]),
    # exact values, which have no tolerance, and what is not defined
    (r"\frac{1}{3^{200}}", [r"3^{-200}", r"\left(\frac{1}{3}\right)^{200}"], [r"\frac{1}{3^{201}}", "0"]),
    (r"\frac{1}{60!}", [r"\frac{1}{60\cdot 59!}"], [r"\frac{1}{61!}"]),
    ("e^{-500}", [r"\frac{1}{e^{500}}"], ["e^{-501}", "0"]),
    (r"(1,2^{-300})", [], [r"(1,2^{-301})"]),
    (r"4.2\times 10^{-70}", ["4.2e-70"], [r"4.3\times 10^{-70}"]),
    ("0", ["0.0", r"\sin\pi"], [r"10^{-90}", "0.0000001"]),
    (r"\frac{3}{0}", [], [r"\frac{4}{0}", r"\infty"]),
    # times
    ("6:00", ["6:00", r"6{:}00", "06:00", "6:00 PM", r"6:00\text{ p.m.}"], ["7:00", "12:00", r"\frac{6}{0}"]),
    ("8:15 AM", [r"8:15\text{ a.m.}", "8:15"], ["8:15 PM", "8:16 AM"]),
    (r"\text{5:45 p.m.}", [r"5:45 \text{ p.m.}"], ["5:45 am"]),
    ("3:4", ["3∶4", "3：4", r"\frac{3}{4}"], ["4:3"]),
    # pairs, congruences and sequences
    ("(7,3)", ["7,3"], ["[7,3]", "(3,7)", "[7,3)"]),
    ("9,4", ["4,9"], ["[9,4]"]),
    ("11", [], [r"4\equiv 11", r"11\ldots", r"11, \ldots", "11..."]),
    (r"5\pmod{8}", ["5", r"x\equiv 5\pmod 8"], [r"5\pmod{9}", "6"]),
    (r"1,3,\ldots,n", [r"1, 3, \ldots, n", r"1,3,\dots,n"], ["1,3,n"]),
    (r"\frac{4}{9}", [r"0.\bar{4}", r"0.\dot{4}", "0.(4)", "0.444...", r"0.444\ldots"], ["0.44", r"0.\bar{5}"]),
    (r"\frac{5}{33}", [r"0.\overline{15}", r"0.1515\ldots"], []),
    # units by their shape
    (
        "12",
        [
            *(r"12\text{ kPa}", r"12\ \mathrm{K}", r"12^\circ\text{C}", "12°F", r"12\,\mathrm{m^3/s}"),
            r"12\text{ N}\cdot\text{m}",
        ],
        [],
    ),
    (
        "12",
        [r"\text{12 miles}", r"\mathrm{12\,kg}", r"12 {\rm seconds}", r"12\hbox{ cups}", "12 km/h", "¥12", "12 bits"],
        [],
    ),
    (
        "12",
        [r"12\frac{\text{mol}}{\text{L}}", r"12\ \mu\text{g}", r"12\ \Omega", r"12\text{ mA}", r"12\text{ eV}"],
        ["12m", "12 m", "12ab"],
    ),
    (
        r"9\text{ m s}^{-2}",
        [r"9\text{ m/s}^2", r"9\text{ meters per second squared}", "9"],
        [r"9\text{ m/s}", r"9\text{ km/s}^2"],
    ),
    (r"4\text{ kJ/mol}", [r"4\text{ kilojoules per mole}"], [r"4\text{ J/mol}", r"4\text{ kJ}"]),
    (r"35\%", [r"35\text{ pct}", r"\text{35\%}"], [r"36\%"]),
    # characters
    (r"\frac{7}{2}", ["3½", "３．５"], ["31/2"]),
    (r"10^{5}", ["10⁵", "100000"], ["105"]),
    (r"2.5\times 10^{-3}", ["2.5×10⁻³"], []),
    ("a_2", ["a₂"], ["a2^"]),
    (r"\sqrt{13}", ["√13", "√(13)"], ["13"]),
    ("(4,5)", ["（4，5）"], ["（5，4）"]),
    ("-6", ["－6", "﹣6"], ["6"]),
    ("25", ["25元", r"25\text{元}", "x＝25", "25。"], []),
    # typesetting
    (
        "9",
        [
            *(r"\boldsymbol{9}", r"\bm{9}", r"{\bf 9}", r"\textcolor{red}{9}", r"{\color{blue}9}", r"\underline{9}"),
            "**9**",
        ],
        [],
    ),
    ("9", [r"\textstyle 9", r"\approx 9", "9,", "9;", r"\bigl(9\bigr)", r"\text{\textbf{9}}", "9=x"], ["**8**"]),
    (r"54,\! 321", ["54321", "54,321", r"54,\!321"], ["54, 322"]),
    (r"\frac{2}{\mathrm{e}}", [r"\frac2e", r"2\mathrm{e}^{-1}"], []),
    (r"\sin y", [r"\mathrm{sin}\,y", r"\operatorname{sin} y"], [r"\mathrm{cos}\,y"]),
    ("E_4", ["E_{4}"], ["E_5"]),
    (r"\frac{5}{8}", [r"\frac 5 8", r"\nicefrac{5}{8}", r"\sfrac58"], [r"\frac 8 5"]),
    (r"\frac \pi3", [r"\frac{\pi}{3}"], []),
    (r"\sqrt[3]{-64}", ["-4"], ["4"]),
    (r"\binom{7}{3}", ["C(7,3)", "C_7^3", "35"], []),
    (
        r"\begin{pmatrix}6\\7\end{pmatrix}",
        [r"\begin{pmatrix}6\\[4pt]7\end{pmatrix}", r"\left(\begin{smallmatrix}6\\7\end{smallmatrix}\right)"],
        [],
    ),
    # other notations of sets, intervals, bases and lists of words
    ("[3,8)", [r"\{x \mid 3\le x<8\}", r"\{x: 3\le x<8\}", "[3;8)", "[3,8[", r"8>x\ge 3"], ["(3,8)", "]3,8["]),
    (r"\{(1,2),(2,1)\}", ["(1,2),(2,1)", r"(2,1) \text{ and } (1,2)"], ["(1,2)"]),
    ("345_6", ["(345)_6", r"345\ (\text{base } 6)"], ["(345)_7"]),
    (r"\text{B, D}", ["B,D", "D, B", r"B \text{ and } D"], ["B", "B, C"]),
    (r"\text{Carol, Dave}", [r"\text{Dave and Carol}"], [r"\text{Carol}"]),
    ("(D)", ["(d)", "D)", "D,", r"\text{Option D}", r"\text{Answer: D}"], ["(C)"]),
    # the same kinds, as other writers spell them
    (
        "2",
        ["∛8", "∜16", r"\operatorname{lcm}(1,2)", r"\gcd(4,6)", r"\mathrm{gcd}(4, 6)", "= 2", r"\therefore 2", "*2*"],
        ["∛9", r"\gcd(4,8)", "5-3-1", r"\approx", "?", r"\sim 2", "2*3*"],
    ),
    (r"3\pmod 7", [r"3\bmod 7", r"10 \bmod 7", r"3 \pmod{7}"], [r"3\bmod 5", r"4\bmod 7"]),
    ("23", [], [r"2\gcd(3,6)", "2*3*", "2**3**"]),
    ("203", [], [r"20-12 \bmod 5"]),
    ("3.5", [r"\simeq 3.5", r"x\approx 3.5", "3½", r"3.5\enspace\text{cm}", r"3.5\hspace{2pt}\text{m}"], ["3.4"]),
    (r"\frac{12}{99}", [r"0.\dot{1}\dot{2}", r"0.1212\ldots", r"0.\overline{12}", "0.(12)"], ["0.12", r"0.\dot{1}2"]),
    (r"\mathbb{R}", [r"\mathbb R"], [r"\mathbb Q"]),
    (r"3.2\times 10^{-5}", [r"3.2\times10^{-5}\ \mathrm{mol\,L^{-1}}"], [r"3.2\times10^{-4}\ \mathrm{mol}"]),
    ("9.8", [r"9.8\,\text{m}/\text{s}^2", r"9.8\ \text{m}\cdot\text{s}^{-2}", r"9.8\ \mathrm{N\,kg^{-1}}"], []),
    (r"5\text{ mm}", ["5", r"5\,\mathrm{mm}"], [r"5\text{ Mm}", r"5\text{ m}"]),
    (r"2^{-3}", ["2⁻³", r"\frac{1}{8}"], ["2^3", "8"]),
    ("12345", [r"12,\!345", r"12,\! 345", "12,345"], ["12, 345"]),
    (r"\{1,2,3\}", [r"\{1;2;3\}", "｛1，2，3｝", "3,2,1"], ["(1,2,3)", r"\{1,2\}"]),
    ("[0,1)", ["[0;1)", "[0,1[", r"\{x \mid 0\le x<1\}", r"1>x\ge 0"], ["(0,1)", "]0,1["]),
    ("A,C", ["C,A", r"\text{A and C}", "(a), (c)"], ["A", "A,B", "A,B,C"]),
    (r"10^{-80}", [], ["0", "10^{-81}"]),
    # noise, and several candidates
    ("7", ["$7$", r"\(7\)", "7.", r"\!7\,", r"\mathrm{7}", r"\(7\).", "\n7\n"], ["", "?", r"\text{}"]),
    (r"\boxed{7}", ["7"], []),
    ("7", [], ["7 or 8", r"7\text{ or }8", "7, 8", "8; 7", r"\{7, 8\}", "[7,8]", "7 8", r"7\neq 8", "7, 7"]),
    ("7", [], [r"8 \fbox{7}", "8 $7$", "The final answer is $7$. I hope", "not 7", r"7\text{garbage}"]),
    ("7", ["７", "٧"], ["(7,7)", "7/2", r"7\text{ million}", "1,2,3,4,5,6,7,8,9"]),  # a full-width digit; an Arabic one
    ("7", [r"\frac{14}{2}", r"\text{7}"], ["seven", "x>7", r"x\neq 7", "7<8"]),
    ("8", [], [r"7\text{ or }8", r"7\to 8"]),
    ("15", [], ["7 8", r"7\quad 8"]),
    ("78", [], ["7 8"]),
    # products by brackets, and letters that are no units
    ("6", ["2(3)", "(2)(3)", r"2\left(3\right)", "x=2(3)"], ["5"]),
    ("5", [], ["2(3)", "(2)(3)", "2[3]", r"\frac{1}{2}x=5", r"\sqrt{x}=5", r"\pi x=5", r"\log x=5", "(x-1)=5"]),
    (r"\frac{5}{2}", [r"2\frac{1}{2}"], [r"2(\frac{1}{2})", "5(2)"]),
    ("64", ["2^{2(3)}"], ["2^{5}"]),
    ("2", ["2 km", "2 mA", "2cm"], ["2nt", "2GM", "2dt", "2 V/A", "2 b/d"]),
    ("3", ["3 m/s", "3 km/h"], ["3 h/t"]),
    (r"\frac12", [], [r"\frac{1}{2}mg"]),
    # numbers behind a unit
    (
        "5",
        [],
        [r"5\text{ hours }30\text{ minutes}", r"5\text{ cm}/2", r"5\text{ kg} - 3", r"5\text{ s}.2", "5 ft 3 in"],
    ),
    ("12", [], [r"12\text{ cm}-3\text{ cm}", "12 in-3", r"12\text{ cm}^2 4"]),
    (r"2\text{ hours }15\text{ minutes}", [], ["2", r"2\text{ hours }45\text{ minutes}"]),
    (r"5\text{ m}, 6\text{ m}", ["5, 6", r"6\text{ m}, 5\text{ m}"], [r"5\text{ m}, 6\text{ s}"]),
    (r"30^\circ, 150^\circ", ["30, 150", r"150^\circ, 30^\circ", r"x=30^\circ, 150^\circ"], [r"30^\circ, 120^\circ"]),
    (r"45^\circ, 45^\circ, 90^\circ", ["90, 45, 45"], [r"45^\circ, 90^\circ, 90^\circ"]),
    (r"\sin 45^\circ", [r"\frac{\sqrt2}{2}", r"\cos 45^\circ"], [r"\sin 45"]),
    (r"5^{\circ}\text{C}", [r"5\text{ degrees Celsius}"], [r"5^\circ\text{F}"]),
    (r"7\text{ cm}", [r"7\ (\mathrm{cm})", r"7\,[\text{cm}]"], [r"7\ (\mathrm{m})"]),
    # money, percent, large numbers
    (r"\$5", ["5", r"5\text{ dollars}", r"\$5.00"], [r"5\text{ cents}", r"5\text{ cm}", "€5", r"5\%", r"\$5\text{M}"]),
    ("0.5", [], [r"0.5\%", r"\frac{1}{2}\%"]),
    (r"5\%", [], [r"5\text{ cm}", r"5^\circ"]),
    ("2500000", [r"2.5\text{ million}", r"\$2.5\text{ million}"], [r"2.5\text{ billion}"]),
    # named values
    ("x=3,y=4", ["(3,4)", "y=4,x=3", "3,4"], ["(4,3)", "4,3", r"\{3,4\}", "x=4,y=3"]),
    ("(3,4)", ["x=3,y=4", "y=4,x=3"], ["y=3,x=4"]),
    ("1,2", ["x=1,x=2", "2,1"], ["1,1,2", "1<x<2"]),
    (r"\frac{1\pm\sqrt5}{2}", [r"\frac{1+\sqrt5}{2},\frac{1-\sqrt5}{2}"], [r"\frac{1+\sqrt5}{2}"]),
    (r"\begin{cases}x=1\\y=2\end{cases}", ["x=1,y=2", "(1,2)"], ["(2,1)"]),
    # subscripts, primes, bases, ratios
    ("I_0e^{-t}", [r"I_0 \cdot e^{-t}"], ["I_1e^{-t}"]),
    ("f'(0)", [], ["f(0)", "f''(0)"]),
    ("A2_{16}", [], ["2A_{16}", "A2_{15}"]),
    ("x=1011_2", ["1011_2", "1011"], ["x=1011_3", "x=1010_2"]),
    ("12_7, 13_7", ["13_7, 12_7"], ["12_5, 13_5"]),
    ("1:2:3", ["2:4:6"], ["1:3:2", "1:6"]),
    ("123", [], ["0,123"]),
    (r"1\pmod 3", [r"4\pmod 3", r"1\ (\bmod\ 3)"], [r"2\pmod 3", r"4\pmod 5"]),
    (r"x=k\pi, k\in\mathbb{Z}", [r"x=k\pi", r"k\pi\ (k\in\mathbb{Z})"], [r"x=2k\pi"]),
    # words, times, Chinese
    (r"\text{True, False}", ["True, False", "T, F"], [r"\text{False, True}"]),
    ("HTH", ["HTH"], ["HHT"]),
    ("A, C, D", ["ACD", r"\text{A}, \text{C}, \text{D}", r"A\&C\&D"], ["ACE", "CDA, B"]),
    (r"\text{Alice, Bob}", [r"\text{Bob}, \text{Alice}", r"\text{Alice and Bob}"], [r"\text{Alice, Rob}"]),
    ("3:30 PM", ["15:30", "3:30"], ["3:30 AM", "3:31 PM"]),
    ("5:00 PM", ["5 PM"], ["5 AM", "1:3"]),
    ("15:30", [], ["3:30"]),
    ("5", ["5厘米", "5元"], ["5万", "5以上", "5的平方"]),
    # notation
    (r"\frac13", [r"0.\bar3", r"x=0.\overline{3}", r"0.\dot3"], [r"0.\bar4"]),
    (r"\sqrt[3]{2}", [r"\sqrt[3]2", r"2^{\frac13}"], [r"\sqrt{2}"]),
    ("10", [r"\binom52", "C_5^2", "2•5"], [r"\binom53+1"]),
    (r"\frac18", ["2^-3", r"{\Large \frac18}", r"\emph{0.125}"], ["2^3"]),
    ("24", ["4!=24", r"\begin{aligned}x&=24\end{aligned}", r"\text{Answer: 24}", r"24 \tag{1}"], ["4!=25"]),
    (r"-\frac18", [r"\cos\frac{\pi}{7}\cos\frac{2\pi}{7}\cos\frac{4\pi}{7}"], [r"\cos\frac{\pi}{7}"]),
    (r"m_{\max}=n^2", [r"m_{\max }=n^2", r"M_\max=n^2", "n^2"], ["n^3"]),
]
# Pairs of an answer and a label, and whether it is right.
VERDICTS = [(answer, label, True) for label, right, _ in TABLE for answer in right]
VERDICTS += [(answer, label, False) for label, _, wrong in TABLE for answer in wrong]


LIMITS: list[tuple[str, str, bool]] = [
    (r"500\text{ cm}", r"5\text{ m}", False),  # units are not converted
    (r"3\text{ apples}", "3", False),  # only units are left out, not what is counted
    (r"\frac{\pi}{2}", r"90^\circ", False),  # nor degrees
    ("3,5", "3.5", False),  # the comma is no decimal point
    ("200,100", "100,200", False),  # three digits after a comma: one number
    (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)", False),  # a column is no tuple
    ("(A) 7", "A", False),  # a choice is its letter alone
    (r"\text{no solution}", r"\emptyset", False),  # words are compared as words
    (r"x<2\text{ or }x>3", r"(-\infty,2)\cup(3,\infty)", False),  # two inequalities
    ("abcd", "dcba", False),  # four letters and more are a word
    ("X", "x", True),  # math-verify reads letters in any case
    ("x=y=7", "7", False),  # one name in front of a chain
    ("x^2+y^2=7", "7", True),  # whatever it is that stands left of the sign
    (r"7\approx 8", "7", True),  # what follows "about" is not read
]

# What would hold up, kill or trick a process that took it at its word; all of it is wrong.
HOSTILE: dict[str, str] = {
    "tower": "9**9**9",
    "tower of powers": "9^{9^{9^9}}",
    "factorial": "100000000!",
    "division by zero": r"\frac{1}{0}",
    "sum": r"\sum_{k=1}^{10^{12}}\sin k",
    "open braces": "{" * 60,
    "nesting": "(" * 120 + "7" + ")" * 120,
    "nested roots": r"\sqrt{" * 35 + "7" + "}" * 35,
    "a megabyte of braces": "{" * 10**6 + "}" * 10**6,
    "a megabyte of digits": "7" * 10**6,
    "null bytes": "7\x00",
    "lone surrogates": "7\ud800",
    "superscript digits": "²",
    "backslashes": "\\" * 255,
}
