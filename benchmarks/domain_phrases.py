"""Prompts by template, and the words of each domain: what the domain classifier is told besides public data.

Public labelled data is plentiful for code and sums, and thin for writing, science questions and everyday talk. Templates
over broad topic lists keep the model from learning the topics of one source; the word lists are its prior, so that a
domain's plain vocabulary counts for it even where no source happened to use it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

SCIENCE_TOPICS = (
    "photosynthesis|cellular respiration|mitochondria|the cell membrane|DNA replication|RNA transcription|protein synthesis|enzymes|gene expression|"
    "natural selection|genetic drift|mitosis and meiosis|the immune system|vaccines|antibiotics|viruses|bacteria|the nervous system|neurons|hormones|"
    "the human heart|blood pressure|the kidneys|digestion|insulin and glucose|diabetes|cancer cells|stem cells|ecosystems|food webs|the carbon cycle|"
    "the nitrogen cycle|the water cycle|biodiversity|climate change|the greenhouse effect|ocean acidification|coral bleaching|plate tectonics|earthquakes|"
    "volcanoes|the rock cycle|fossils|glaciers|tides|weather fronts|hurricanes|lightning|the ozone layer|gravity|black holes|neutron stars|supernovae|"
    "the life cycle of stars|the big bang|cosmic background radiation|dark matter|dark energy|exoplanets|the solar system|eclipses|comets|redshift|"
    "Newton's laws of motion|momentum|kinetic energy|potential energy|friction|torque|centripetal force|buoyancy|pressure in fluids|Bernoulli's principle|"
    "thermodynamics|entropy|heat transfer|specific heat|the ideal gas law|wave interference|diffraction|refraction|polarization of light|lasers|lenses|"
    "the Doppler effect|sound waves|resonance|electric fields|magnetic fields|electromagnetic induction|capacitors|semiconductors|superconductivity|"
    "quantum mechanics|the uncertainty principle|quantum entanglement|the photoelectric effect|radioactive decay|nuclear fission|nuclear fusion|"
    "special relativity|general relativity|atomic orbitals|the periodic table|ionization energy|electronegativity|chemical bonds|covalent bonds|"
    "ionic compounds|hydrogen bonding|acids and bases|pH and buffers|redox reactions|electrochemistry|catalysts|reaction rates|chemical equilibrium|"
    "Le Chatelier's principle|stoichiometry|molarity|organic molecules|polymers|isomers|esters|combustion|crystallization|distillation|chromatography|"
    "spectroscopy|osmosis|diffusion|surface tension|viscosity|CRISPR|PCR|antibodies|neurotransmitters|the brain's hippocampus|sleep and circadian rhythm|"
    "muscle contraction|bone density|pathogens|allergies|inflammation|clinical trials|placebo effects|epidemiology|soil chemistry|plant hormones|"
    "pollination|bird migration|animal camouflage|predator and prey populations|symbiosis|geothermal energy|solar cells|batteries|rocket propulsion"
).split("|")

SCIENCE_FORMS = (
    "Explain {t} in simple terms.|What is {t} and why does it matter?|How does {t} work at the molecular level?|Why does {t} happen?|"
    "Describe the role of {t} in nature.|What evidence supports our understanding of {t}?|Compare {t} with {u}.|What causes {t}?|"
    "Explain the physics behind {t}.|What is the relationship between {t} and {u}?|Give an overview of {t} for a biology student.|"
    "What happens to {t} when the temperature increases?|Which experiment first demonstrated {t}?|How do scientists measure {t}?|"
    "Explain the mechanism of {t} step by step.|What are common misconceptions about {t}?|How was {t} discovered?|"
    "What would happen on Earth without {t}?|Can you describe how {t} affects living organisms?|I am studying for a chemistry exam. Can you explain {t}?|"
    "Which of the following best describes {t}?\nA. a physical change\nB. a chemical process\nC. a form of energy\nD. none of these|"
    "A student observes {t} in the laboratory. Which explanation is most likely correct?"
).split("|")

HEALTH_FORMS = (
    "Is {t} curable?|Can {t} go away on its own?|What causes {t}?|How is {t} treated?|How is {t} diagnosed?|What are the symptoms of {t}?|Is {t} contagious?|"
    "How long does {t} last?|Can {t} cause {u}?|What is the difference between {t} and {u}?|Who is at risk of {t}?|What happens if {t} is left untreated?|"
    "Should I see a doctor about {t}?|Can children get {t}?|Is {t} hereditary?|What foods should I avoid with {t}?|Can stress cause {t}?|"
    "What is the best medicine for {t}?|What are the side effects of drugs for {t}?|Why does {t} get worse at night?|Can you die from {t}?|"
    "Does exercise help with {t}?|How common is {t}?|Is surgery needed for {t}?|How do you prevent {t}?|What does {t} feel like?|Is {t} dangerous during pregnancy?|"
    "A 45-year-old woman has had {t} for two weeks. What is the most likely diagnosis?|Which drug is the first choice for {t}?|Does aspirin help against {t}?"
).split("|")

HEALTH_TOPICS = (
    "asthma|migraine|a stomach ulcer|high blood pressure|low blood pressure|anaemia|eczema|psoriasis|shingles|chickenpox|measles|pneumonia|bronchitis|"
    "a sinus infection|an ear infection|a sore throat|tonsillitis|heartburn|constipation|diarrhoea|food poisoning|appendicitis|gallstones|kidney stones|"
    "a bladder infection|gout|arthritis|osteoporosis|back pain|sciatica|a slipped disc|a sprained ankle|a broken rib|tendonitis|a stroke|epilepsy|dementia|"
    "depression|anxiety|insomnia|sleep apnoea|diabetes|an underactive thyroid|obesity|high cholesterol|a heart attack|an irregular heartbeat|varicose veins|"
    "a blood clot|hepatitis|cirrhosis|malaria|tuberculosis|the flu|a cold|hay fever|a food allergy|hives|acne|warts|a fungal infection|a rash|hair loss|"
    "cataracts|glaucoma|pink eye|tinnitus|vertigo|a concussion|numbness in the hands|swollen lymph nodes|a fever|a persistent cough|chest pain|skin cancer"
).split("|")

PHYSICS_FORMS = (
    "A {n} kg block slides down a frictionless incline of {m} degrees. What is its acceleration?|A ball is thrown upward at {m} m/s. How high does it rise?|"
    "A wire carries a current of {n} A in a magnetic field of 0.{n} T. What force acts on it?|A photon has a wavelength of {m}0 nm. What is its energy in eV?|"
    "Two charges of {n} microcoulombs are {m} cm apart. Find the electric force between them.|A gas expands isothermally at {m}0 K. How much work does it do?|"
    "A spring with constant {m}0 N/m is stretched by {n} cm. How much energy does it store?|A lens has a focal length of {m} cm. Where is the image of an object {n}0 cm away?|"
    "How much heat is needed to melt {n} g of ice at 0 degrees Celsius?|A satellite orbits the Earth at {m}00 km. What is its speed?|"
    "What is the pH of a 0.{n} M solution of hydrochloric acid?|How many moles are in {m} grams of sodium chloride?|A sample decays to one eighth in {m} days. What is its half-life?|"
    "An electron is accelerated through {m}0 volts. Find its de Broglie wavelength.|A {m} kg car moving at {n} m/s collides with a wall. What is the change of its momentum?|"
    "Balance the equation for the combustion of propane.|What is the escape velocity of a planet with {n} times the mass of the Earth?|"
    "Light passes from air into glass with a refractive index of 1.{n}. What is the angle of refraction for {m} degrees?|"
    "A transformer has {m}0 turns on the primary and {n}0 on the secondary. What is the output voltage?|What is the resistance of {n} resistors of {m} ohms in parallel?|"
    "A string of {n} m vibrates at {m} Hz in its fundamental mode. What is the speed of the wave?|What is the maximum efficiency of an engine between {m}0 K and {n}00 K?"
).split("|")

SUM_FORMS = (
    "{a} had {m} {x}. She gave {n} to {b} and lost {n}. How many {x} does she have now?|There were {m} {x} on the shelf. {a} put {n} more there. How many are there?|"
    "{a} and {b} picked {m} {x} together. {a} picked {n} of them. How many did {b} pick?|Each pack has {n} {x}. {a} buys {m} packs. How many {x} is that?|"
    "{a} shares {m}0 {x} equally among {n} friends. How many does each get, and how many are left?|{a} has {n} times as many {x} as {b}. {b} has {m}. How many do they have altogether?|"
    "{a} bought {n} {x} for ${m} each and paid with a hundred dollar bill. How much change did he get?|A recipe needs {n} cups of sugar for {m} cookies. How much is needed for twice as many?|"
    "{a} walked {n} miles on Monday, twice as far on Tuesday and {m} miles on Friday. How many miles did she walk in all?|A garden has {n} rows of {m} {x}. {n} of them wilt. How many remain?|"
    "On a field trip, {m} students and {n} teachers rode in vans that hold {n} people each. How many vans were needed?|{a} earned $0.{m} for each bottle and returned {m}0 bottles. How much money did he make?|"
    "{a} is saving for a bike that costs ${m}0. He has ${n}0 and earns ${n} a week for chores. How many weeks must he work?|A pie was cut into {n} pieces. {a} ate 2. What fraction is left?|"
    "{a} reads {n} pages every night before bed. How many pages does she read in {m} weeks?|Half of the {m}0 {x} in the box are red, a quarter are blue and the rest are green. How many are green?|"
    "The store sold {m} {x} on Saturday and {n} fewer on Sunday. How many were sold over the weekend?|{a} ate {n} slices, which was a third of what {b} ate. How many slices were eaten?|"
    "It takes {a} {n} minutes to wash a car. How many hours does it take to wash {m} cars?|{a}'s bill was ${m}.00 and she left a {n}0% tip. How much did she pay in total?|"
    "A bus started with {m} passengers. At the first stop {n} got off and twice that number got on. How many are on the bus now?|"
    "A baker uses {n} eggs per cake and has {m} eggs. How many cakes can he bake?|If {a} had {n} more {x}, he would have {m}. How many does he have?"
).split("|")

SUM_THINGS = (
    "marbles|apples|stickers|pencils|cookies|baseball cards|balloons|oranges|books|seashells|crayons|cupcakes|flowers|toy cars|pennies|eggs|peaches|muffins|beads|"
    "tickets|shirts|chairs|bottles|puppies|candies|photos|stamps|blocks|carrots|ribbons|bananas|coins|postcards|tulips|sandwiches|kites|hats|songs|games|boxes"
).split("|")

STUDY_FORMS = (
    "To determine whether exercise reduces the risk of {t}, we followed {m}0 patients for {n} years. A multivariate analysis was used. Does exercise reduce {t}?|"
    "The aim of this study was to compare two treatments of {t} in a randomised trial with {m}0 participants. Is one treatment superior?|"
    "We examined the records of {m}00 adults with {t} and {u} in a retrospective cohort. The incidence was {n}%. Is {t} associated with {u}?|"
    "Background: little is known about {t} in elderly patients. Methods: a questionnaire was sent to {m}0 hospitals. Do outcomes differ by age?|"
    "Serum levels were measured in {m} patients with {t} and in healthy controls (p < 0.0{n}). Are they a useful marker?|"
    "This prospective study evaluates whether early surgery improves survival in {t}. Should patients be operated on within {n} days?|"
    "Primary care physicians in {n} regions were surveyed about {t}. Do their attitudes affect access to care?|"
    "Health policy and costs of {t}: an analysis of national survey data from {m}00 households. Does insurance coverage matter?"
).split("|")

COMPUTING_FORMS = (
    "Explain {t}.|What is {t}?|What does {t} do?|What is the difference between {t} and {u}?|How does {t} work?|When should I use {t} instead of {u}?|"
    "Describe {t} in one paragraph.|Give an example of {t}.|Explain {t} to a beginner.|What are the advantages of {t}?|Compare {t} and {u}.|"
    "Why is {t} faster than {u}?|What is the time complexity of {t}?|How would you implement {t}?|What problem does {t} solve?|How do I test {t}?|"
    "Name two common mistakes with {t}.|How is {t} used in practice?|What happens when {t} fails?|How do I debug {t}?|Define {t} in one sentence."
).split("|")

COMPUTING_TOPICS = (
    "a hash table|a linked list|a binary search tree|a heap|a trie|a graph traversal|depth-first search|breadth-first search|binary search|bubble sort|quicksort|"
    "merge sort|dynamic programming|divide and conquer|memoization|recursion|big O notation|a closure|a lambda expression|a decorator|a generator|an iterator|"
    "a context manager|a coroutine|async and await|the event loop|a promise|a callback|a thread pool|a race condition|a deadlock|a mutex|garbage collection|"
    "reference counting|a memory leak|a segmentation fault|a dangling pointer|stack overflow|malloc and free|a smart pointer|polymorphism|inheritance|"
    "an abstract class|an interface|a singleton|dependency injection|unit testing|integration tests|mocking|continuous integration|version control|a merge conflict|"
    "rebasing a branch|a commit hash|semantic versioning|a package manager|a virtual environment|a compiler|an interpreter|a linker|a syntax tree|"
    "a regular expression|string formatting|UTF-8 encoding|floating point rounding|integer overflow|type inference|static typing|an enum|a struct|operator overloading|"
    "exception handling|a stack trace|logging|the DOM|event bubbling|CSS flexbox|a media query|responsive layout|a cookie|a session token|an HTTP request|a REST API|"
    "a webhook|a load balancer|caching|a message queue|a database index|a foreign key|a join|a transaction|normalisation of tables|a stored procedure|an ORM|"
    "a container image|an environment variable|a cron job|a shell pipe|a file descriptor|a symbolic link|a process signal|SSH keys|TLS certificates|"
    "a neural network|gradient descent|overfitting|cross-validation|a confusion matrix|tokenization|Huffman coding|a checksum|a Bloom filter|a priority queue|"
    "a data frame|a pivot table|JSON parsing|serialization|an API key|pagination|rate limiting|a microservice|an open source license|a design pattern"
).split("|")

TASK_FORMS = (
    "Identify the verb in the sentence: {t}|Classify the tone of this sentence as positive, negative or neutral: {t}|Rewrite the sentence in the past tense: {t}|"
    "Rewrite the sentence in the passive voice: {t}|Make this sentence shorter: {t}|Correct the grammar of the following sentence: {t}|Turn this statement into a question: {t}|"
    "Arrange the words to form a sentence: {t}|Fill in the blank: {t} ____|Replace one word of the sentence with its opposite: {t}|Give a synonym for the last word of: {t}|"
    "Summarize the text in one sentence: {t}|Extract all the names in the text: {t}|Is the following statement true or false? {t}|Translate the sentence to French: {t}|"
    "Which category does this belong to: sports, politics, food or travel? {t}|Determine whether the two sentences have the same meaning: {t} {u}|"
    "What can be inferred from this sentence? {t}|Explain the idiom in the sentence: {t}|Count the nouns in this sentence: {t}|Combine the two sentences: {t} {u}|"
    "Generate a sentence with the same meaning: {t}|Create a list of three objects mentioned here: {t}|Output 1 if the review is good and 0 if it is bad: {t}|"
    "Generate a metaphor for this situation: {t}|Name a word that rhymes with the last word of: {t}|Suggest a question about the text: {t}|Detect the sarcasm: {t}"
).split("|")

SENTENCES = (
    "The children walked to school.|She was happy to be home.|The flowers in the garden were red and yellow.|He forgot his umbrella again.|The food was cold and the waiter was rude.|"
    "My brother plays the guitar every evening.|They have lived in Madrid for ten years.|The movie was far too long.|Maria and Tom opened a bakery last spring.|I could not believe my eyes.|"
    "The team won the final in extra time.|Nobody answered the phone.|The old man fed the birds in the park.|We should leave before it gets dark.|The phone stopped working after a week.|"
    "She sells sea shells by the shore.|The mayor promised to lower the rent.|It rained for the whole holiday.|The hotel was close to the beach.|He barely passed the exam.|"
    "This is the best soup I have ever had.|The company will hire fifty people.|The train left without us.|Her speech made everyone cry.|The cat slept on the warm stones.|"
    "You cannot have your cake and eat it too.|The museum is closed on Mondays.|The dress does not fit any more.|Our neighbours are moving to Canada.|The service was quick and friendly."
).split("|")

ROLE_FORMS = (
    "Act as {t}. Stay in character and answer my questions.|Pretend you are {t} and introduce yourself.|Imagine you are {t}. How would you describe your day?|"
    "Take on the role of {t}. My first request is about {u}.|You are {t}. Speak only as that character would.|Embody the persona of {t} throughout this conversation.|"
    "Picture yourself as {t}. What do you see when you wake up?|How would {t} describe {u}?|As {t}, reply to a letter from {u}.|Suppose you were {t} meeting {u}. What would you say?"
).split("|")

ROLES = (
    "a medieval knight|Sherlock Holmes|an alien who visits Earth|a ghost in an old castle|a tree that is a hundred years old|a stand-up comedian|a sea captain|Cleopatra|"
    "a superhero without powers|a talking cat|a travel guide from the year 3000|a motivational speaker|a relationship coach|Napoleon|a villain in a film|a wise old wizard|"
    "a famous chef|a football commentator|William Shakespeare|Albert Einstein|a vampire who is afraid of the dark|a robot that learns to feel|a mermaid|a Viking"
).split("|")

WRITING_FORMS = (
    "Write a short story about {t}.|Write a poem about {t}.|Compose a haiku about {t}.|Write a sonnet on {t}.|Draft an essay on {t}.|"
    "Write a blog post about {t}.|Write a song about {t}.|Write lyrics about {t} in the style of a folk ballad.|Create a dialogue between two characters about {t}.|"
    "Write the opening scene of a novel about {t}.|Write a monologue by someone who lost {t}.|Write a product description for {t}.|"
    "Create a slogan for a company that sells {t}.|Write a formal email about {t}.|Draft a cover letter that mentions {t}.|Write a letter to a friend about {t}.|"
    "Write a speech about {t} for a wedding.|Write a newspaper article about {t}.|Write a press release announcing {t}.|Write a fairy tale about {t}.|"
    "Write a fable about {t} with a moral.|Rewrite this paragraph about {t} in a more formal tone.|Write a limerick about {t}.|"
    "Write a personal essay about {t}, in the first person.|Describe {t} in vivid, sensory language.|Write a movie review of a film about {t}.|"
    "Write a script for a short play about {t}.|Continue this story: It was the last day of {t}.|Write an advertisement for {t}.|Write a tweet about {t}.|"
    "Write a children's book about {t}.|Write a horror story set around {t}.|Compose an engaging travel blog post about {t}.|"
    "Write a descriptive paragraph about {t}.|Craft a compelling story about {t} with a surprising ending.|Write a toast about {t}.|"
    "Paraphrase the following sentence about {t}.|Proofread and polish my paragraph about {t}.|Imagine you are a pirate and tell a tale of {t}.|"
    "Pretend to be a detective in a noir novel who investigates {t}.|Write a diary entry of a sailor who dreams of {t}.|Write a eulogy for {t}.|"
    "Suggest a title and a first paragraph for a novel about {t}.|Write a caption for a photo of {t}.|Write a persuasive essay arguing for {t}."
).split("|")

WRITING_TOPICS = (
    "a lighthouse keeper|the sea at night|an old clock|a lost dog|two sisters|a train journey|autumn leaves|a forgotten letter|the first snow|a dragon and a baker|"
    "a robot who paints|love and distance|a small village|my grandmother's kitchen|friendship|loneliness|courage|a broken promise|a magic garden|a rainy city|"
    "a retired astronaut|a cat who talks|the moon|a haunted house|a hidden door|coffee|handmade candles|eco-friendly shoes|a new bakery|a mountain cabin|"
    "a summer in Italy|a trip to Hawaii|remote work|a farewell party|a job application|a delayed order|a birthday|a school reunion|a thunderstorm|a stolen painting|"
    "a violinist|the last library|an island|a time traveller|an honest thief|a queen without a crown|forgiveness|the sound of bells|a long winter|a river crossing"
).split("|")

CHAT_FORMS = (
    "What are some tips for {t}?|Can you recommend something for {t}?|How can I get better at {t}?|I need advice about {t}.|What do you think about {t}?|"
    "Give me five ideas for {t}.|How do I start with {t}?|What should I know before {t}?|Is {t} worth it?|What are the pros and cons of {t}?|"
    "I am nervous about {t}. What can I do?|Plan a weekend around {t}.|Tell me about {t}.|What is the history of {t}?|Hi! Do you like {t}?|"
    "My partner and I disagree about {t}. Any suggestions?|What is the best way of {t} on a budget?|How long does it usually take with {t}?|"
    "List some benefits of {t}.|Why do people enjoy {t}?|Who are famous people known for {t}?|What gifts suit someone who loves {t}?|Explain {t} to me."
).split("|")

CHAT_TOPICS = (
    "cooking pasta|making crepes|learning the guitar|moving to a new city|saving money|buying a used car|time management|public speaking|job interviews|"
    "making friends|running a marathon|losing weight|sleeping better|meditation|houseplants|adopting a dog|cats|a first date|a wedding|camping|hiking|"
    "a trip to Japan|visiting Paris|board games|movies for a rainy evening|books for teenagers|decorating a small room|painting a wall|gardening|baking bread|"
    "a healthy breakfast|vegetarian dinners|a birthday party|difficult neighbours|stress at work|working from home|asking for a raise|negotiating a salary|"
    "investing|retirement|credit cards|renting a flat|learning Spanish|raising children|screen time|social media|football|the Olympic Games|jazz|the Roman Empire|"
    "democracy|the United Nations|marketing a small business|starting a company|leadership|email etiquette|a capsule wardrobe|fashion|coffee|wine|tea|yoga|"
    "world capitals|the French Revolution|the Renaissance|philosophy|ethics|religion|customer service|human resources|supply and demand|inflation"
).split("|")

CONSTRAINTS = (
    "Your entire response must be in lowercase letters.|Do not use any commas in your response.|Answer with exactly {n} bullet points.|"
    "Your answer must contain at least {n} sentences.|Use fewer than {n}0 words.|Wrap your entire response in double quotation marks.|"
    "End your response with the exact phrase 'Is there anything else I can help with?'|Include the keyword '{k}' at least {n} times.|"
    "Do not include the word '{k}' in your answer.|Highlight at least {n} sections with markdown, i.e. *highlighted section*.|"
    "Your response should contain exactly {n} paragraphs separated by the markdown divider ***.|The first word of paragraph {n} must be '{k}'.|"
    "Give two different responses separated by six asterisk symbols ******.|Entire output should be wrapped in JSON format.|"
    "The letter {l} should appear at least {n} times.|Write in all capital letters.|Finish with a postscript starting with P.S.|"
    "Your answer must have a title wrapped in double angular brackets, such as <<title>>.|First repeat the request word for word without change, then give your answer.|"
    "Respond with at least {n}00 words and no question marks.|Number each of your {n} points and begin each with a verb."
).split("|")

REASONING_FORMS = (
    "{a} is taller than {b}. {b} is taller than {c}. Who is the shortest?|If all {x} are {y} and some {y} are {z}, does it follow that some {x} are {z}?|"
    "{a} is facing north, turns right twice and then left. In which direction does {a} face now?|Three friends, {a}, {b} and {c}, sit in a row. {a} is not next to {c}. Who sits in the middle?|"
    "On an island, knights always tell the truth and knaves always lie. {a} says: {b} is a knave. {b} says: we are both knights. Who is what?|"
    "{a} has a brother, {b}. {b}'s father is {c}. How is {c} related to {a}?|Which word does not belong: {x}, {y}, {z}, bicycle? Explain your reasoning.|"
    "What comes next in the sequence: circle, square, circle, circle, square, circle, circle, circle, ...?|If you overtake the person in second place in a race, which place are you in?|"
    "Five houses in a row are painted in different colours. {a} lives left of {b}. {c} lives in the red house. Who owns the fish? Deduce it step by step.|"
    "Premise 1: No {x} are {y}. Premise 2: All {z} are {y}. What conclusion is logically valid?|A farmer must cross a river with a {x}, a {y} and a {z}, but the boat holds two. How?|"
    "If today is two days after the day before Monday, what day is it tomorrow?|{a}, {b} and {c} each have a different pet. {a} is allergic to fur. Who has the cat?|"
    "Which assumption does the argument above depend on?|Which of the following, if true, most weakens the argument?|"
    "Which one of the following statements must be true if the statements above are true?|You have two ropes that burn unevenly for an hour each. How do you measure 45 minutes?"
).split("|")

MATH_FORMS = (
    "{a} has {n}5 {x} and buys {m} more every day for {n} days. How many {x} does {a} have in total?|{a} earns ${m}0 an hour and works {n} hours a day. How much does {a} earn in a week?|"
    "A box holds {m}2 {x}. How many {x} are there in {n} boxes?|{a} gave {n} {x} to {b} and twice as many to {c}. If {a} had {m}0 {x} at first, how many are left?|"
    "A train travels {m}00 km in {n} hours. What is its average speed?|If {n} {x} cost ${m}.50, how much do {m} {x} cost?|{a} is {m} years old. {b} is {n} years older than {a}. What is the sum of their ages?|"
    "A shirt costs ${m}0 and is discounted by {n}0%. What is the final price?|{a} read {n}/5 of a book with {m}00 pages on Monday. How many pages remain?|"
    "The ratio of {x} to {y} on a farm is {n}:{m}. If there are {m}0 {y}, how many {x} are there?|There are {m}4 students in a class and {n} of them are absent. What percentage is present?|"
    "{a} can paint a fence in {n} hours and {b} in {m} hours. How long does it take them together?|Solve for x: {n}x + {m} = {m}{n}.|Factor the polynomial x^2 - {n}x + {m}.|"
    "Find the derivative of f(x) = {n}x^3 - {m}x.|Evaluate the integral of {n}x^2 dx from 0 to {m}.|What is {m}{n} * {n}{m}?|What is the area of a rectangle with sides {n} cm and {m} cm?|"
    "Prove that the sum of two even integers is even.|How many ways can {n} people be seated in a row of {m} chairs?|What is the probability of drawing {n} red balls from a bag of {m} red and {n} blue balls?|"
    "Find the greatest common divisor of {m}8 and {n}6.|Let G be a finite group of order {m}. Show that it has an element of order {n}.|Calculate the limit as n goes to infinity of (1 + {n}/n)^n.|"
    "A rectangle has a perimeter of {m}8 and a length of {n}. Find its width.|{a} saves ${n} every week. After how many weeks will {a} have ${m}00?|Simplify ({n}a + {m}b) - ({m}a - {n}b).|"
    "A farmer sells {n} dozen eggs a day at ${m} each. How much money does he make every week?|{a} drives {n} hours at {m}0 miles per hour, then {n}0 minutes at half that speed. How far is it?|"
    "Find the eigenvalues of the matrix [[{n}, 1], [0, {m}]].|What is the sum of the first {m}0 positive integers?|If {a} runs {n} laps of {m}00 meters a day, how many meters does {a} run in a week?"
).split("|")

CODE_FORMS = (
    "Write a function in {l} that returns the {k} of a list.|How do I read a file line by line in {l}?|Fix the bug in this {l} program.|Write a SQL query to find the customers with more than {n} orders.|"
    "Create an HTML page with a form and a submit button.|Write a CSS rule that centers a div.|Explain the difference between a list and a tuple in Python.|What does the following {l} code print?|"
    "Implement a binary search tree in {l}.|Write a regular expression that matches an email address.|Write a unit test for a function that parses dates in {l}.|How can I undo the last commit in git?|"
    "Write a bash script that renames all files in a folder.|Design a class in {l} to represent a bank account.|Optimize this {l} loop for speed.|Convert this {l} snippet to Python.|"
    "Construct a data structure to store the information of a student.|Name the {l} library used for sorting.|Write an API endpoint that returns a JSON object.|What is a null pointer exception in {l}?|"
    "Generate a random password of {n} characters using {l}.|Print the numbers from 1 to {n} in {l}.|Edit the following code so that it prints the {k}.|Write a query to select all rows of the employees table.|"
    "Create a {l} program to check whether a string is a palindrome.|What is the time complexity of merge sort?|Write a Dockerfile for a {l} web app.|Given an array of integers, return the indices of two numbers that add up to the target.|"
    "Write a React component that shows a counter.|Write an algorithm to find the {k} in an array.|Explain recursion with an example in {l}.|Debug the following code.|Suggest a suitable algorithm to detect a cycle in a linked list."
).split("|")
LANGUAGES = "Python|Java|JavaScript|C++|C#|Go|Rust|Ruby|PHP|Swift|Kotlin|TypeScript|R|Perl|Scala".split("|")
KINDS = "maximum|minimum|sum|average|median|second largest value|most frequent element|longest word|number of vowels|reverse".split(
    "|"
)

MULTILINGUAL_MATH = (
    "{a} hat {m} Aepfel und kauft {n} mehr. Wie viele hat {a} insgesamt?|Ein Zug faehrt {m}00 km in {n} Stunden. Wie schnell ist er?|Jedes Buch kostet {n} Euro. Wie viel kosten {m} B\u00fccher zusammen?|"
    "{a} verdient {m} Dollar pro Stunde und arbeitet {n} Stunden. Wie viel verdient sie in der Woche?|Wie viele Minuten sind {n} Stunden und {m} Minuten?|Berechne die Fl\u00e4che eines Rechtecks mit {n} cm und {m} cm.|"
    "{a} tiene {m} manzanas y compra {n} m\u00e1s. \u00bfCu\u00e1ntas tiene en total?|Un tren recorre {m}00 km en {n} horas. \u00bfCu\u00e1l es su velocidad?|Cada libro cuesta {n} d\u00f3lares. \u00bfCu\u00e1nto cuestan {m} libros?|"
    "{a} gana {m} d\u00f3lares por hora y trabaja {n} horas al d\u00eda. \u00bfCu\u00e1nto gana a la semana?|\u00bfCu\u00e1ntos minutos hay en {n} horas?|Resuelve la ecuaci\u00f3n {n}x + {m} = 30.|"
    "{a} a {m} pommes et en ach\u00e8te {n} de plus. Combien en a-t-il au total ?|Un train parcourt {m}00 km en {n} heures. Quelle est sa vitesse ?|Chaque livre co\u00fbte {n} euros. Combien co\u00fbtent {m} livres ?|"
    "{a} gagne {m} dollars de l'heure et travaille {n} heures par jour. Combien gagne-t-elle par semaine ?|Combien de minutes y a-t-il dans {n} heures ?|R\u00e9sous l'\u00e9quation {n}x + {m} = 30.|"
    "{a}\u306f\u308a\u3093\u3054\u3092{m}\u500b\u6301\u3063\u3066\u3044\u307e\u3059\u3002{n}\u500b\u8cb7\u3046\u3068\u5168\u90e8\u3067\u4f55\u500b\u3067\u3059\u304b\uff1f|1\u518a{n}\u30c9\u30eb\u306e\u672c\u3092{m}\u518a\u8cb7\u3046\u3068\u5408\u8a08\u3044\u304f\u3089\u3067\u3059\u304b\uff1f|"
    "{a}\u306f1\u6642\u9593\u306b{m}\u30ad\u30ed\u8d70\u308a\u307e\u3059\u3002{n}\u6642\u9593\u3067\u4f55\u30ad\u30ed\u8d70\u308a\u307e\u3059\u304b\uff1f|{a}\u306e\u5e74\u9f62\u306f{m}\u6b73\u3067\u3001{b}\u306f{n}\u500d\u3067\u3059\u3002\u5408\u308f\u305b\u3066\u4f55\u6b73\u3067\u3059\u304b\uff1f|"
    "{a}\u6709{m}\u4e2a\u82f9\u679c\uff0c\u53c8\u4e70\u4e86{n}\u4e2a\uff0c\u4e00\u5171\u6709\u591a\u5c11\u4e2a\uff1f|\u6bcf\u672c\u4e66{n}\u5143\uff0c{m}\u672c\u4e66\u4e00\u5171\u591a\u5c11\u94b1\uff1f|"
    "\u4e00\u5217\u706b\u8f66{n}\u5c0f\u65f6\u884c\u9a76{m}00\u5343\u7c73\uff0c\u901f\u5ea6\u662f\u591a\u5c11\uff1f|{a}\u6bcf\u5c0f\u65f6\u8d5a{m}\u7f8e\u5143\uff0c\u6bcf\u5929\u5de5\u4f5c{n}\u5c0f\u65f6\uff0c\u4e00\u5468\u8d5a\u591a\u5c11\uff1f"
).split("|")

MULTILINGUAL_CHAT = (
    "Was kann ich am Wochenende in {p} machen?|Wie schreibe ich eine gute Bewerbung?|Gib mir Tipps f\u00fcr besseren Schlaf.|Was h\u00e4ltst du von {p}?|Empfiehl mir ein Buch.|Warum sind Katzen beliebt?|"
    "\u00bfQu\u00e9 puedo hacer en {p} este fin de semana?|Dame consejos para dormir mejor.|\u00bfCu\u00e1les son las ventajas de vivir en {p}?|Recomi\u00e9ndame una pel\u00edcula.|\u00bfC\u00f3mo puedo aprender a cocinar?|"
    "Que faire \u00e0 {p} ce week-end ?|Donne-moi des conseils pour mieux dormir.|Quels sont les avantages de vivre \u00e0 {p} ?|Recommande-moi un film.|Comment apprendre \u00e0 cuisiner ?|"
    "\u9031\u672b\u306b{p}\u3067\u4f55\u3092\u3057\u305f\u3089\u3044\u3044\u3067\u3059\u304b\uff1f|\u304a\u3059\u3059\u3081\u306e\u672c\u3092\u6559\u3048\u3066\u304f\u3060\u3055\u3044\u3002|\u3088\u304f\u7720\u308b\u305f\u3081\u306e\u30b3\u30c4\u306f\u4f55\u3067\u3059\u304b\uff1f|"
    "\u5468\u672b\u5728{p}\u53ef\u4ee5\u505a\u4ec0\u4e48\uff1f|\u8bf7\u63a8\u8350\u4e00\u672c\u597d\u4e66\u3002|\u600e\u6837\u624d\u80fd\u7761\u5f97\u66f4\u597d\uff1f|\u5982\u4f55\u5b66\u4f1a\u505a\u996d\uff1f|\u8bf7\u4ecb\u7ecd\u4e00\u4e0b{p}\u7684\u7f8e\u98df\u3002"
).split("|")

NAMES = (
    "Anna|Ben|Carla|David|Emma|Farid|Grace|Hugo|Ines|Jonas|Kira|Liam|Mona|Noah|Olga|Paul|Rosa|Sam|Tara|Victor".split(
        "|"
    )
)
THINGS = "wolves|goats|cabbages|poets|painters|sailors|roses|stones|foxes|teachers|engineers|birds|swans|doctors|chess players|violins".split(
    "|"
)

TOOL_FORMS = (
    "What is the weather in {p} right now?|Set an alarm for seven tomorrow morning.|Send an email to {a} that I will be late.|Book a table for four in {p} tonight.|"
    "Find me a flight from {p} to {q} next Friday.|What is the current price of {s} stock?|Convert 250 USD to EUR at today's rate.|Add a meeting with {a} to my calendar on Monday at 10.|"
    "Search the web for the latest news about {p}.|Remind me to call {a} at noon.|Turn off the lights in the living room.|Play some jazz in the kitchen.|"
    "Order a large pizza to my home address.|Translate this document and upload it to the shared drive.|Get the list of open tickets assigned to {a}.|"
    "Look up the phone number of {a} in my contacts.|Track my package with number 1Z999.|Create a new task called groceries and assign it to {a}.|"
    "Navigate to the nearest petrol station in {p}.|Delete the event titled dentist from my calendar."
).split("|")
PLACES = "Lisbon|Berlin|Nairobi|Osaka|Toronto|Lima|Oslo|Mumbai|Boston|Cairo".split("|")

WORDS = {
    "code": "python javascript java typescript html css sql function class method variable array loop string integer boolean algorithm compile "
    "debug code script regex api json query database table index recursion pointer linked stack queue tree binary sort parse exception error bug "
    "refactor unittest test library module import package django flask react node numpy pandas dataframe tensor git docker kubernetes bash shell "
    "linux command terminal server endpoint http request backend frontend component programming program implement implementation return returns "
    "def lambda async thread mutex struct enum interface c++ rust golang kotlin swift php ruby selenium css selector dom webpage website snippet",
    "math": "calculate compute solve equation equations integral derivative limit matrix determinant eigenvalue vector polynomial root roots "
    "probability permutations combinations triangle angle radius circumference area perimeter volume theorem prove proof lemma integer integers "
    "prime divisor modulo remainder fraction decimal percent percentage sum product quotient ratio proportion average median variance algebra "
    "geometry trigonometry sine cosine logarithm exponent quadratic linear inequality sequence series converge factorial hexagon circle "
    "hypotenuse coordinates slope intercept discount interest cost total each more less twice half times minus plus equals simplify factor expression",
    "science": "atom atoms molecule molecules cell cells protein proteins enzyme dna rna gene genes organism organisms species evolution energy force "
    "mass velocity acceleration gravity electron electrons proton neutron ion ions acid base reaction chemical compound element oxygen carbon hydrogen "
    "nitrogen temperature pressure heat thermodynamics entropy wave wavelength frequency light photon quantum magnetic electric current voltage "
    "planet planets star stars orbit galaxy earth ocean climate atmosphere bacteria virus disease patient treatment symptoms diagnosis blood heart "
    "brain neurons hormone tissue muscle bone kidney liver lung drug therapy clinical physics chemistry biology geology astronomy medicine "
    "membrane photosynthesis respiration ecosystem habitat mineral rock soil laboratory experiment hypothesis solution concentration",
    "writing": "story poem essay novel character characters dialogue scene plot write rewrite compose draft paragraph letter email blog article "
    "headline slogan tagline haiku sonnet limerick lyrics song verse stanza rhyme narrative fiction fantasy metaphor tone style tagline speech "
    "monologue screenplay script caption summary summarize paraphrase proofread edit persuasive descriptive creative chapter author reader",
    "chat": "recommend advice tips suggest suggestion suggestions opinion favorite hobby travel trip recipe cook friend family weekend birthday gift "
    "feel feeling worried happy hello hi thanks movie music restaurant health exercise diet job career interview boss money budget holiday hotel",
    "tool_use": "weather alarm reminder calendar schedule book flight reservation stock currency convert search lookup call invoke tool tools "
    "function_call arguments parameters api playlist lights thermostat navigate order track",
    "reasoning": "puzzle riddle logic logical premise premises conclusion deduce infer inference taller shorter older younger facing north south east west "
    "knight knave liar truth argument weakens strengthens assumption follows valid syllogism sequence pattern seated row clue clues",
    "instruction_following": "exactly lowercase uppercase capital letters commas keyword bullet sections paragraphs sentences words wrapped highlighted "
    "postscript placeholders divider asterisk repeat entire response format constraint constraints",
    "safety": "illegal illegally harmful weapon weapons bomb explosive explosives hack malware ransomware steal kill murder suicide drugs cocaine meth racist "
    "hate slur violence violent terrorist poison launder fraud scam phishing stalk abuse porn jailbreak unethical dangerous exploit",
}
"""Plain vocabulary of each domain, in lower case."""


def templated(domain: str, count: int, seed: int = 0) -> Iterator[str]:
    """Yield prompts of a domain made from templates."""
    draw = random.Random(f"{domain}-{seed}")
    forms = {
        "science": (SCIENCE_FORMS, SCIENCE_TOPICS),
        "health": (HEALTH_FORMS, HEALTH_TOPICS),
        "physics": (PHYSICS_FORMS, SCIENCE_TOPICS),
        "studies": (STUDY_FORMS, HEALTH_TOPICS),
        "sums": (SUM_FORMS, SUM_THINGS),
        "computing": (COMPUTING_FORMS, COMPUTING_TOPICS),
        "tasks": (TASK_FORMS, SENTENCES),
        "roles": (ROLE_FORMS, ROLES),
        "writing": (WRITING_FORMS, WRITING_TOPICS),
        "chat": (CHAT_FORMS, CHAT_TOPICS),
        "reasoning": (REASONING_FORMS, THINGS),
        "tool_use": (TOOL_FORMS, PLACES),
        "instruction_following": (CONSTRAINTS, CHAT_TOPICS),
        "math": (MATH_FORMS, THINGS),
        "code": (CODE_FORMS, THINGS),
        "multilingual_math": (MULTILINGUAL_MATH, THINGS),
        "multilingual_chat": (MULTILINGUAL_CHAT, PLACES),
    }[domain]
    for _ in range(count):
        form = draw.choice(forms[0])
        topic, other = draw.sample(forms[1], 2)
        names, things = draw.sample(NAMES, 3), draw.sample(SUM_THINGS if domain == "sums" else THINGS, 3)
        filled = form.format_map(
            {
                "t": topic,
                "u": other,
                "a": names[0],
                "b": names[1],
                "c": names[2],
                "x": things[0],
                "y": things[1],
                "z": things[2],
                "n": draw.randint(2, 6),
                "m": draw.randint(7, 40),
                "k": draw.choice(KINDS if domain == "code" else things),
                "l": draw.choice(LANGUAGES if domain == "code" else list("abcdeoqz")),
                "p": topic,
                "q": other,
                "s": draw.choice(names),
            }
        )
        if domain == "instruction_following":
            asked = draw.choice(CHAT_FORMS + WRITING_FORMS[:20]).format(t=topic)
            filled = f"{asked} {filled}" + (f" {draw.choice(CONSTRAINTS[:2])}" if draw.random() < 0.4 else "")
        yield filled
