"""Countries with their capitals, by continent."""

from typing import NamedTuple


class Country(NamedTuple):
    """A country, its capital and its continent."""

    name: str
    capital: str
    continent: str


_EUROPE = """France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon Austria:Vienna Switzerland:Bern
Belgium:Brussels Denmark:Copenhagen Sweden:Stockholm Norway:Oslo Finland:Helsinki Iceland:Reykjavik Ireland:Dublin
Poland:Warsaw Hungary:Budapest Romania:Bucharest Bulgaria:Sofia Greece:Athens Croatia:Zagreb Slovenia:Ljubljana
Slovakia:Bratislava Serbia:Belgrade Albania:Tirana Ukraine:Kyiv Belarus:Minsk Lithuania:Vilnius Latvia:Riga
Estonia:Tallinn Moldova:Chisinau Malta:Valletta Monaco:Monaco Andorra:Andorra_la_Vella Liechtenstein:Vaduz
Montenegro:Podgorica Russia:Moscow the_United_Kingdom:London the_UK:London England:London the_Netherlands:Amsterdam
the_Czech_Republic:Prague North_Macedonia:Skopje Bosnia_and_Herzegovina:Sarajevo San_Marino:San_Marino
Luxembourg:Luxembourg"""
_ASIA = """China:Beijing Japan:Tokyo India:New_Delhi South_Korea:Seoul North_Korea:Pyongyang Mongolia:Ulaanbaatar
Thailand:Bangkok Vietnam:Hanoi Laos:Vientiane Cambodia:Phnom_Penh Myanmar:Naypyidaw Malaysia:Kuala_Lumpur
Singapore:Singapore Indonesia:Jakarta the_Philippines:Manila Nepal:Kathmandu Bhutan:Thimphu Bangladesh:Dhaka
Pakistan:Islamabad Afghanistan:Kabul Iran:Tehran Iraq:Baghdad Syria:Damascus Lebanon:Beirut Jordan:Amman
Saudi_Arabia:Riyadh Yemen:Sanaa Oman:Muscat Qatar:Doha Bahrain:Manama Kuwait:Kuwait_City
the_United_Arab_Emirates:Abu_Dhabi Turkey:Ankara Georgia:Tbilisi Armenia:Yerevan Azerbaijan:Baku Kazakhstan:Astana
Uzbekistan:Tashkent Turkmenistan:Ashgabat Kyrgyzstan:Bishkek Tajikistan:Dushanbe Cyprus:Nicosia Maldives:Male
Taiwan:Taipei"""
_AFRICA = """Egypt:Cairo Libya:Tripoli Tunisia:Tunis Algeria:Algiers Morocco:Rabat Sudan:Khartoum South_Sudan:Juba
Ethiopia:Addis_Ababa Eritrea:Asmara Djibouti:Djibouti Somalia:Mogadishu Kenya:Nairobi Uganda:Kampala Rwanda:Kigali
Tanzania:Dodoma Angola:Luanda Zambia:Lusaka Zimbabwe:Harare Malawi:Lilongwe Mozambique:Maputo Madagascar:Antananarivo
Mauritius:Port_Louis Namibia:Windhoek Botswana:Gaborone Lesotho:Maseru Nigeria:Abuja Ghana:Accra Togo:Lome
Benin:Porto_Novo Senegal:Dakar Mali:Bamako Niger:Niamey Chad:N'Djamena Cameroon:Yaounde Gabon:Libreville
Guinea:Conakry Liberia:Monrovia Sierra_Leone:Freetown Burkina_Faso:Ouagadougou Mauritania:Nouakchott
South_Africa:Pretoria Gambia:Banjul"""
_NORTH_AMERICA = """Canada:Ottawa Mexico:Mexico_City the_United_States:Washington the_USA:Washington
Guatemala:Guatemala_City Honduras:Tegucigalpa El_Salvador:San_Salvador Nicaragua:Managua Costa_Rica:San_Jose
Panama:Panama_City Cuba:Havana Jamaica:Kingston Haiti:Port-au-Prince the_Dominican_Republic:Santo_Domingo
Belize:Belmopan the_Bahamas:Nassau Barbados:Bridgetown"""
_SOUTH_AMERICA = """Brazil:Brasilia Argentina:Buenos_Aires Chile:Santiago Peru:Lima Colombia:Bogota Venezuela:Caracas
Ecuador:Quito Bolivia:Sucre Paraguay:Asuncion Uruguay:Montevideo Guyana:Georgetown Suriname:Paramaribo"""
_OCEANIA = """Australia:Canberra New_Zealand:Wellington Fiji:Suva Papua_New_Guinea:Port_Moresby Samoa:Apia
Tonga:Nukualofa Vanuatu:Port_Vila"""


def _parse(table: str, continent: str) -> list[Country]:
    pairs = [entry.replace("_", " ").split(":") for entry in table.split()]
    return [Country(name, capital, continent) for name, capital in pairs]


COUNTRIES: tuple[Country, ...] = (
    *_parse(_EUROPE, "Europe"),
    *_parse(_ASIA, "Asia"),
    *_parse(_AFRICA, "Africa"),
    *_parse(_NORTH_AMERICA, "North America"),
    *_parse(_SOUTH_AMERICA, "South America"),
    *_parse(_OCEANIA, "Oceania"),
)
