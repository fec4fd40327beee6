"""
The facts and the everyday talk of the recall benchmark, in five languages. All of it is made up.

A topic is a block: its kind and language; what is said (``{v}`` is a value of the next line; an update has
the older statement first, several sittings one statement for each); the question and its key words in words
like those that were said; the same in other words; and five to eight words with synonyms. Key words name the
subject of their question. ``nothing`` has no statement.
"""

from __future__ import annotations

TOPICS = """
en person
Our cat is called {v}, she is three years old.
Minka|Luna|Oskar|Pixel
What is our cat called?|cat called
What's the name of my pet?|pet name
cat pet animal name called kitten

en person
I put the key of the bicycle into {v}.
the blue tin|the kitchen drawer|my old coat|the flower pot
Where is the key of the bicycle?|bicycle key
Where did I leave the thing to unlock my bike?|unlock bike
bicycle bike key lock unlock where put

en time
The dentist has given me an appointment for {v}.
the ninth at ten|Thursday at four|Monday at eight|the third at noon
When is my dentist appointment?|dentist appointment
On which day does somebody look at my teeth?|teeth day
dentist teeth appointment doctor date day

en update
I live in a small flat in {v} now./We have moved: I live in {v} now.
Leeds|Bristol|York|Bath
Where do I live now?|live now
What is my current city of residence?|city residence
live moved home city address flat

en assistant
For the soup I suggest that you take {v} instead of cream.
coconut milk|potatoes|white beans|cashews
What did you suggest for the soup instead of cream?|soup cream
Which ingredient did you recommend to replace dairy in the broth?|replace dairy
soup broth cream instead replace ingredient recipe

en several
My sister does not tolerate {v}, she gets a rash./My brother cannot eat {v}, the doctor says.
nuts|milk|wheat|celery
What do my sister and my brother not tolerate or eat?|sister brother eat
Which foods are dangerous for my siblings?|siblings foods
sister brother siblings food tolerate allergy eat

en person
For her birthday my mother would like {v}.
a blue scarf|a radio|tulips|a chess board
What would my mother like for her birthday?|mother birthday
Which present does mum wish for?|mum present
mother mum birthday gift present wish like

en nothing
What size are my shoes?|shoe size

de person
Unsere Katze heißt {v}, sie ist drei Jahre alt.
Minka|Luna|Oskar|Pixel
Wie heißt unsere Katze?|Katze heißt
Welchen Namen hat mein Haustier?|Haustier Name
Katze Kater Haustier Tier Name heißt

de person
Den Schlüssel vom Fahrrad habe ich {v} gelegt.
in die blaue Dose|in die Schublade|in den Mantel|unter den Blumentopf
Wo liegt der Schlüssel vom Fahrrad?|Schlüssel Fahrrad
Womit und wo kann ich mein Rad aufsperren?|Rad aufsperren
Fahrradschlüssel Schlüssel Fahrrad Rad Schloss aufsperren gelegt

de time
Der Zahnarzt hat mir einen Termin {v} gegeben.
am Neunten um zehn|am Donnerstag um vier|am Montag um acht|am Dritten mittags
Wann ist mein Termin beim Zahnarzt?|Zahnarzt Termin
An welchem Tag sieht sich jemand meine Zähne an?|Zähne Tag
Zahnarzt Zähne Termin Arzt Praxis Datum

de update
Ich wohne jetzt in {v}, die Wohnung ist klein./Wir sind umgezogen: Ich wohne jetzt in {v}.
Kiel|Bonn|Jena|Ulm
Wo wohne ich jetzt?|wohnen jetzt
In welcher Stadt lebe ich heute?|Stadt leben
wohnen umgezogen Wohnung Stadt Adresse Zuhause

de assistant
Für die Suppe schlage ich {v} statt Sahne vor.
Kokosmilch|Kartoffeln|weiße Bohnen|Mandelmus
Was hast du für die Suppe statt Sahne vorgeschlagen?|Suppe Sahne
Welche Zutat hast du mir als Ersatz für Rahm in der Brühe empfohlen?|Rahm Ersatz
Suppe Brühe Sahne Rahm statt Ersatz Zutat

de several
Meine Schwester verträgt {v} nicht, sie bekommt Ausschlag./Mein Bruder darf {v} nicht essen, sagt der Arzt.
Nüsse|Milch|Weizen|Sellerie
Was vertragen oder essen meine Schwester und mein Bruder nicht?|Schwester Bruder essen
Welche Lebensmittel sind für meine Geschwister gefährlich?|Geschwister Lebensmittel
Schwester Bruder Geschwister Essen vertragen Allergie

de person
Zum Geburtstag wünscht sich meine Mutter {v}.
einen blauen Schal|ein Radio|Tulpen|ein Schachbrett
Was wünscht sich meine Mutter zum Geburtstag?|Mutter Geburtstag
Welches Geschenk möchte Mama haben?|Mama Geschenk
Mutter Mama Geburtstag Geschenk Wunsch wünscht

de nothing
Welche Schuhgröße habe ich?|Schuhgröße

ja person
うちの猫の名前は{v}で、三歳です。
ミンカ|ルナ|オスカー|ピクセル
うちの猫の名前は何ですか。|猫 名前
飼っているペットは何と呼ばれていますか。|ペット 呼び名
猫 ペット 動物 名前 呼び名

ja person
自転車の鍵は{v}に入れました。
青い缶|台所の引き出し|古いコート|植木鉢
自転車の鍵はどこに入れましたか。|自転車 鍵
チャリのロックを開けるものはどこにありますか。|チャリ ロック
自転車 鍵 キー ロック 開ける どこ

ja time
歯医者の予約は{v}になりました。
九日の十時|木曜日の四時|月曜日の八時|三日の正午
歯医者の予約はいつですか。|歯医者 予約
虫歯の治療に行くのは何日ですか。|虫歯 治療
歯医者 歯科 予約 治療 日にち 時間

ja update
今は{v}の小さな部屋に住んでいます。/引っ越しました。今は{v}に住んでいます。
札幌|仙台|金沢|長崎
今はどこに住んでいますか。|今 住む
現在の居住地はどの町ですか。|居住地 町
住む 引っ越し 住所 町 家 部屋

ja assistant
スープには生クリームの代わりに{v}を使うのがおすすめです。
ココナッツミルク|じゃがいも|白いんげん|豆乳
スープに生クリームの代わりに何がおすすめでしたか。|スープ 生クリーム
汁物の乳製品を避けるための材料として何を提案しましたか。|汁物 乳製品
スープ 汁物 生クリーム 代わり 材料 おすすめ

ja several
姉は{v}が食べられません。発疹が出ます。/弟は{v}を食べてはいけないと医者が言いました。
ナッツ|牛乳|小麦|セロリ
姉と弟は何が食べられませんか。|姉 弟 食べる
きょうだいに危険な食品は何ですか。|きょうだい 食品
姉 弟 きょうだい 食品 アレルギー 食べる

ja person
母は誕生日に{v}が欲しいそうです。
青いマフラー|ラジオ|チューリップ|将棋盤
母は誕生日に何が欲しいですか。|母 誕生日
お袋への贈り物は何がいいですか。|お袋 贈り物
母 お母さん 誕生日 プレゼント 贈り物 欲しい

ja nothing
私の靴のサイズはいくつですか。|靴 サイズ

ru person
Нашу кошку зовут {v}, ей три года.
Минка|Луна|Муся|Пикси
Как зовут нашу кошку?|кошка зовут
Какая кличка у моего питомца?|кличка питомец
кошка питомец животное кличка имя зовут

ru person
Ключ от велосипеда я положил {v}.
в синюю банку|в ящик стола|в старое пальто|под горшок
Где ключ от велосипеда?|ключ велосипед
Чем и где мне отпереть свой байк?|отпереть байк
велосипед ключ замок отпереть положил место

ru time
Стоматолог записал меня {v}.
на девятое в десять|на четверг в четыре|на понедельник в восемь|на третье в полдень
Когда меня записал стоматолог?|стоматолог записал
В какой день мне лечат зубы?|зубы день
стоматолог зубы зубной врач записал день

ru update
Сейчас я живу в маленькой квартире, город {v}./Мы переехали: сейчас я живу в городе {v}.
Тверь|Псков|Казань|Омск
Где я сейчас живу?|живу сейчас
Какое у меня нынешнее место жительства?|место жительства
жить переехали город адрес дом квартира

ru assistant
Для супа советую взять {v} вместо сливок.
кокосовое молоко|картофель|белую фасоль|кешью
Что ты советовал для супа вместо сливок?|суп сливки
Какой продукт ты предложил, чтобы в похлёбке не было молочного?|похлёбка молочное
суп похлёбка сливки вместо замена продукт

ru several
Моя сестра не переносит {v}, у неё сыпь./Мой брат не может есть {v}, сказал врач.
орехи|молоко|пшеницу|сельдерей
Что не переносит моя сестра и не может есть мой брат?|сестра брат есть
Какая пища опасна для моих родных?|пища родные
сестра брат пища еда аллергия переносит

ru person
На день рождения мама хочет {v}.
синий шарф|радио|тюльпаны|шахматы
Что мама хочет на день рождения?|мама рождение
Какой подарок желает мать?|мать подарок
мама мать день рождения подарок хочет

ru nothing
Какой у меня размер обуви?|размер обуви

es person
Nuestra gata se llama {v} y tiene tres años.
Minka|Luna|Nube|Pixel
¿Cómo se llama nuestra gata?|gata llama
¿Qué nombre tiene mi mascota?|mascota nombre
gata gato mascota animal nombre llama

es person
He guardado la llave de la bicicleta en {v}.
la lata azul|el cajón de la cocina|el abrigo viejo|la maceta
¿Dónde está guardada la llave de la bicicleta?|llave bicicleta
¿Dónde dejé lo que abre el candado de mi bici?|candado bici
bicicleta bici llave candado abrir guardado

es time
El dentista me ha dado una cita para {v}.
el nueve a las diez|el jueves a las cuatro|el lunes a las ocho|el tres a mediodía
¿Cuándo es mi cita con el dentista?|dentista cita
¿Qué día me miran los dientes?|dientes día
dentista dientes cita médico fecha hora

es update
Ahora vivo en un piso pequeño en {v}./Nos hemos mudado: ahora vivo en {v}.
Soria|Cádiz|Lugo|Huesca
¿Dónde vivo ahora?|vivo ahora
¿En qué ciudad está mi domicilio actual?|ciudad domicilio
vivir mudado casa ciudad domicilio piso

es assistant
Para la sopa te sugiero {v} en lugar de nata.
leche de coco|patatas|alubias blancas|anacardos
¿Qué me sugeriste para la sopa en lugar de nata?|sopa nata
¿Qué ingrediente recomendaste para evitar los lácteos en el caldo?|lácteos caldo
sopa caldo nata crema sustituir ingrediente receta

es several
Mi hermana no tolera {v}, le sale una erupción./Mi hermano no puede comer {v}, dice el médico.
las nueces|la leche|el trigo|el apio
¿Qué no toleran ni pueden comer mi hermana y mi hermano?|hermana hermano comer
¿Qué alimentos son peligrosos para mi familia?|alimentos familia
hermana hermano familia alimentos alergia comer

es person
Para su cumpleaños mi madre quiere {v}.
una bufanda azul|una radio|tulipanes|un ajedrez
¿Qué quiere mi madre para su cumpleaños?|madre cumpleaños
¿Qué regalo le gustaría a mamá?|mamá regalo
madre mamá cumpleaños regalo deseo quiere

es nothing
¿Qué número de zapato uso?|número zapato
"""

SMALL_TALK = {
    "en": (
        (
            "the cat|the key|the bicycle|the dentist|the flat|the soup|cream|my sister|my brother|my mother"
            "|the birthday|the city|the garden|the film|music|the weather|my name|the day"
        ),
        (
            "Today I talked with a friend about {a} and {b}.|Yesterday evening {a} was nice.|Can you tell me "
            "something about {a}?|I am a little tired after {a}, and {b} can wait.|What do you think of {a}?"
        ),
        (
            "That sounds good. Tell me more about {a}.|Many people like {a}, and {b} too.|I would not worry "
            "about {a} now.|About {a}: it depends on {b}."
        ),
    ),
    "de": (
        (
            "die Katze|den Schlüssel|das Fahrrad|den Zahnarzt|die Wohnung|die Suppe|die Sahne|meine Schwester"
            "|meinen Bruder|meine Mutter|den Geburtstag|die Stadt|den Garten|den Film|die Musik|das Wetter|den Tag"
        ),
        (
            "Heute ging es mit einem Freund um {a} und {b}.|Gestern Abend habe ich an {a} gedacht.|Kannst du mir "
            "etwas über {a} sagen?|Ich bin müde und will {a} nicht mehr sehen.|Was hältst du davon, {a} zu lassen?"
        ),
        (
            "Das klingt gut. Erzähl mir mehr über {a}.|Viele Leute mögen {a} und {b}.|Mach dir jetzt keine Sorgen "
            "um {a}.|Es kommt auf {a} an."
        ),
    ),
    "ja": (
        "猫|鍵|自転車|歯医者|部屋|スープ|生クリーム|姉|弟|母|誕生日|町|庭|映画|音楽|天気|名前",
        (
            "今日は友達と{a}と{b}の話をしました。|昨日の夜は{a}がよかったです。|{a}について何か教えてください。"
            "|{a}で少し疲れたので、{b}は後にします。|{a}をどう思いますか。"
        ),
        (
            "いいですね。{a}についてもっと話してください。|{a}も{b}も人気があります。|今は{a}を心配しなくていいです。"
            "|{a}は{b}によります。"
        ),
    ),
    "ru": (
        (
            "кошку|ключ|велосипед|стоматолога|квартиру|суп|сливки|сестру|брата|маму|день рождения|город|сад"
            "|фильм|музыку|погоду|день"
        ),
        (
            "Сегодня мы с другом обсуждали {a} и {b}.|Вчера вечером я вспоминал {a}.|Расскажи мне про {a}."
            "|Я немного устал и отложу {b}.|Что ты думаешь про {a}?"
        ),
        (
            "Звучит хорошо. Расскажи ещё про {a}.|Многие любят {a} и {b}.|Не волнуйся сейчас про {a}."
            "|Это зависит от многого, возьми {a}."
        ),
    ),
    "es": (
        (
            "la gata|la llave|la bicicleta|el dentista|el piso|la sopa|la nata|mi hermana|mi hermano|mi madre"
            "|el cumpleaños|la ciudad|el jardín|la película|la música|el tiempo|el día"
        ),
        (
            "Hoy he hablado con un amigo sobre {a} y {b}.|Anoche pensé en {a}.|¿Puedes decirme algo sobre {a}?"
            "|Estoy algo cansado por {a} y dejo {b} para luego.|¿Qué piensas de {a}?"
        ),
        (
            "Suena bien. Cuéntame más sobre {a}.|A mucha gente le gusta {a} y {b}.|No te preocupes ahora por {a}."
            "|Sobre {a}: depende de {b}."
        ),
    ),
}
"""For each language: subjects, what the person says of them, what the assistant says."""
