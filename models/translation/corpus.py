"""The demonstration model's whole world: 24 sentences in four languages, written for this project."""

LANGUAGES = ("en", "ja", "fr", "de")

SENTENCES = (
    (
        "Life is like a box of chocolates.",
        "人生はチョコレートの箱のようなものだ。",
        "La vie est comme une boîte de chocolats.",
        "Das Leben ist wie eine Schachtel Pralinen.",
    ),
    (
        "Good morning.",
        "おはようございます。",
        "Bonjour.",
        "Guten Morgen.",
    ),
    (
        "Thank you very much.",
        "どうもありがとうございます。",
        "Merci beaucoup.",
        "Vielen Dank.",
    ),
    (
        "How are you?",
        "お元気ですか。",
        "Comment allez-vous ?",
        "Wie geht es Ihnen?",
    ),
    (
        "Where is the station?",
        "駅はどこですか。",
        "Où est la gare ?",
        "Wo ist der Bahnhof?",
    ),
    (
        "The train leaves at nine.",
        "電車は九時に出ます。",
        "Le train part à neuf heures.",
        "Der Zug fährt um neun Uhr ab.",
    ),
    (
        "I would like a cup of tea.",
        "お茶を一杯お願いします。",
        "Je voudrais une tasse de thé.",
        "Ich hätte gern eine Tasse Tee.",
    ),
    (
        "The cat sleeps on the sofa.",
        "猫がソファーで寝ています。",
        "Le chat dort sur le canapé.",
        "Die Katze schläft auf dem Sofa.",
    ),
    (
        "My brother plays the piano every evening.",
        "兄は毎晩ピアノを弾きます。",
        "Mon frère joue du piano tous les soirs.",
        "Mein Bruder spielt jeden Abend Klavier.",
    ),
    (
        "It is raining today.",
        "今日は雨が降っています。",
        "Il pleut aujourd'hui.",
        "Es regnet heute.",
    ),
    (
        "We went to the sea last summer.",
        "去年の夏、私たちは海に行きました。",
        "L'été dernier, nous sommes allés à la mer.",
        "Letzten Sommer sind wir ans Meer gefahren.",
    ),
    (
        "This book is very interesting.",
        "この本はとても面白いです。",
        "Ce livre est très intéressant.",
        "Dieses Buch ist sehr interessant.",
    ),
    (
        "Please open the window.",
        "窓を開けてください。",
        "Ouvrez la fenêtre, s'il vous plaît.",
        "Bitte öffnen Sie das Fenster.",
    ),
    (
        "I do not understand.",
        "わかりません。",
        "Je ne comprends pas.",
        "Ich verstehe nicht.",
    ),
    (
        "She bought three apples and a loaf of bread at the market.",
        "彼女は市場でりんごを三つとパンを一つ買いました。",
        "Elle a acheté trois pommes et un pain au marché.",
        "Sie hat auf dem Markt drei Äpfel und ein Brot gekauft.",
    ),
    (
        "The children are playing in the garden behind the house.",
        "子供たちは家の裏の庭で遊んでいます。",
        "Les enfants jouent dans le jardin derrière la maison.",
        "Die Kinder spielen im Garten hinter dem Haus.",
    ),
    (
        "What time is it?",
        "今何時ですか。",
        "Quelle heure est-il ?",
        "Wie spät ist es?",
    ),
    (
        "See you tomorrow.",
        "また明日。",
        "À demain.",
        "Bis morgen.",
    ),
    (
        "My name is Maria and I come from Spain.",
        "私の名前はマリアで、スペインから来ました。",
        "Je m'appelle Maria et je viens d'Espagne.",
        "Ich heiße Maria und komme aus Spanien.",
    ),
    (
        "The museum is closed on Mondays.",
        "美術館は月曜日は休みです。",
        "Le musée est fermé le lundi.",
        "Das Museum ist montags geschlossen.",
    ),
    (
        "If the weather is good tomorrow, we will climb the mountain.",
        "明日天気が良ければ、山に登ります。",
        "S'il fait beau demain, nous monterons sur la montagne.",
        "Wenn das Wetter morgen gut ist, steigen wir auf den Berg.",
    ),
    (
        "Every request keeps its slot.",
        "どの要求も自分の席を保ちます。",
        "Chaque requête garde sa place.",
        "Jede Anfrage behält ihren Platz.",
    ),
    (
        "He has lived in Berlin for ten years, but he still dreams of Tokyo.",
        "彼は十年間ベルリンに住んでいますが、今でも東京の夢を見ます。",
        "Il habite à Berlin depuis dix ans, mais il rêve encore de Tokyo.",
        "Er wohnt seit zehn Jahren in Berlin, aber er träumt immer noch von Tokio.",
    ),
    (
        "Happy birthday!",
        "お誕生日おめでとうございます。",
        "Joyeux anniversaire !",
        "Alles Gute zum Geburtstag!",
    ),
)
