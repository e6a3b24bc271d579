// Every word of the page: English, then German. To add a language, add its code and one more text to each row.
// {n} is replaced by a value; {n:picture|pictures} by the first text where n is 1, else by the second.
// Messages that the server writes (errors, and notes about a search) are English.

const LANGUAGES = { en: "English", de: "Deutsch" };

const STRINGS = {
  // the top of the page
  "search": ["Search", "Suchen"],
  "search.box": ["Search your photos", "Fotos durchsuchen"],
  "search.box.title": ["Type words, or drop or paste a picture", "Wörter eingeben oder ein Bild ablegen oder einfügen"],
  "search.add": ["Keep these words and add more", "Diese Wörter behalten und weitere hinzufügen"],
  "search.exclude": ["Leave out what these words mean", "Ausschließen, was diese Wörter bedeuten"],
  "search.picture": ["picture", "Bild"],
  "search.picture.title": ["Search by a picture", "Mit einem Bild suchen"],
  "search.refine": ["Refine results", "Ergebnisse verfeinern"],
  "search.refine.title": ["Let the model learn from the first results and rank them again", "Das Modell aus den ersten Ergebnissen lernen lassen und neu sortieren"],
  "search.filter": ["Filter", "Filter"],
  "search.filter.example": ["Filter, e.g. folder = 'Norway'", "Filter, z. B. folder = 'Norwegen'"],
  "search.filter.title": ["Filter by {names}", "Filtern nach {names}"],
  "term.switch": ["More like this, or less", "Mehr davon oder weniger"],
  "term.remove": ["Remove", "Entfernen"],
  "term.remove.named": ["Remove {name}", "{name} entfernen"],
  "term.towards": ["{name}: more like it; switch", "{name}: mehr davon; umschalten"],
  "term.away": ["{name}: less like it; switch", "{name}: weniger davon; umschalten"],
  "views": ["Views", "Ansichten"],
  "view.pictures": ["Pictures", "Bilder"],
  "view.sorted": ["By label", "Nach Label"],
  "view.map": ["Map", "Karte"],
  "view.duplicates": ["Duplicates", "Duplikate"],
  "view.labels": ["Labels", "Labels"],

  // the status line
  "pictures": ["{n} {n:picture|pictures}", "{n} {n:Bild|Bilder}"],
  "status.time": ["{text} ({milliseconds} ms)", "{text} ({milliseconds} ms)"],
  "status.best": ["{n} {n:picture|pictures}, best first", "{n} {n:Bild|Bilder}, das beste zuerst"],
  "status.likely": ["{n} {n:picture|pictures}, best matches first", "{n} {n:Bild|Bilder}, beste Treffer zuerst"],
  "status.next": ["{n} {n:picture|pictures}, suggested to mark", "{n} {n:Bild|Bilder}, zum Markieren vorgeschlagen"],
  "status.next.none": ["0 pictures: all of these are marked", "0 Bilder: alle sind markiert"],
  "status.cut": ["{n} {n:picture|pictures}, borderline first", "{n} {n:Bild|Bilder}, Grenzfälle zuerst"],
  "status.clicked": ["{n} {n:picture|pictures}, your marks, latest first", "{n} {n:Bild|Bilder}, Ihre Markierungen, neueste zuerst"],
  "status.clicked.none": ["0 pictures: none of these is marked", "0 Bilder: keines davon ist markiert"],
  "status.end": ["{n} likely {n:match|matches} (score above {score}, as {share} of {captions} captions score with their own picture)", "{n} {n:wahrscheinlicher|wahrscheinliche} Treffer (Wert über {score}, wie bei {share} von {captions} Bildunterschriften mit dem eigenen Bild)"],
  "status.end.refined": ["{n} likely {n:match|matches} (score above {score} before refining, as {share} of {captions} captions score with their own picture)", "{n} {n:wahrscheinlicher|wahrscheinliche} Treffer (Wert vor dem Verfeinern über {score}, wie bei {share} von {captions} Bildunterschriften mit dem eigenen Bild)"],
  "status.refining": ["Refining …", "Verfeinern …"],
  "scope": ["Only where {filter}: {n} of {of}. Lists, counts and exports cover only these.", "Nur {filter}: {n} von {of}. Listen, Zahlen und Exporte umfassen nur diese."],
  "scope.off": ["Show all", "Alle zeigen"],
  "scope.filtered": ["(filtered)", "(gefiltert)"],
  "indexing": ["Indexing: {done} of {total} pictures. You can search those already.", "Einlesen: {done} von {total} Bildern. Diese können Sie schon durchsuchen."],
  "indexing.start": ["Looking for pictures …", "Bilder werden gesucht …"],

  // pictures
  "tile.select": ["select", "auswählen"],
  "tile.yes": ["yes", "ja"],
  "tile.no": ["no", "nein"],
  "tile.none": ["no label fits", "kein Label passt"],
  "tile.or": ["{name} (or {others})", "{name} (oder {others})"],
  "tile.possible": ["{file}: could be {names}", "{file}: möglich ist {names}"],
  "viewer": ["Picture", "Bild"],
  "viewer.full": ["Click for full size", "Klicken für volle Größe"],
  "viewer.missing": ["This picture cannot be shown.", "Dieses Bild kann nicht angezeigt werden."],
  "viewer.previous": ["Previous picture", "Voriges Bild"],
  "viewer.next": ["Next picture", "Nächstes Bild"],
  "viewer.captions": ["Captions", "Bildunterschriften"],
  "viewer.more": ["More like this", "Mehr davon"],
  "viewer.less": ["Less like this", "Weniger davon"],
  "viewer.copy": ["Copy path", "Pfad kopieren"],
  "viewer.copied": ["Path copied.", "Pfad kopiert."],
  "viewer.file": ["{n:file|files}", "{n:Datei|Dateien}"],
  "viewer.size": ["size", "Größe"],
  "viewer.labels": ["labels", "Labels"],
  "cancel": ["Cancel", "Abbrechen"],
  "close": ["Close", "Schließen"],
  "episode": ["The model learned from these {n} results and their captions, then ranked them again; {moved} changed places.", "Das Modell hat aus diesen {n} Ergebnissen und ihren Bildunterschriften gelernt und sie neu sortiert; {moved} haben den Platz gewechselt."],
  "episode.failed": ["The results could not be refined.", "Die Ergebnisse konnten nicht verfeinert werden."],

  // labels
  "labels": ["Labels", "Labels"],
  "labels.new": ["New label", "Neues Label"],
  "labels.new.name": ["Name of a new label", "Name eines neuen Labels"],
  "labels.describe": ["Describe it (optional)", "Beschreibung (optional)"],
  "labels.describe.title": ["What pictures with this label look like", "Wie Bilder mit diesem Label aussehen"],
  "labels.add": ["Add", "Hinzufügen"],
  "labels.hint": ["Name a label, then mark pictures with ✓ or ✗. The most likely pictures move to the top.", "Geben Sie einem Label einen Namen und markieren Sie Bilder mit ✓ oder ✗. Die wahrscheinlichsten rücken nach oben."],
  "labels.order": ["Order of pictures", "Reihenfolge der Bilder"],
  "labels.likely": ["Best matches", "Beste Treffer"],
  "labels.next": ["Suggest pictures to mark", "Bilder zum Markieren vorschlagen"],
  "labels.cut": ["Borderline", "Grenzfälle"],
  "labels.clicked": ["Marked by me", "Von mir markiert"],
  "labels.remove": ["Remove {name}", "{name} entfernen"],
  "labels.remove.ask": ["Remove the label {name} and its {n} {n:mark|marks}? You can undo this.", "Label {name} und {n} {n:Markierung|Markierungen} entfernen? Das lässt sich rückgängig machen."],
  "labels.remove.yes": ["Remove label", "Label entfernen"],
  "labels.found": ["{n} likely {n:match|matches} (about {all} in all).", "{n} {n:wahrscheinlicher|wahrscheinliche} Treffer (insgesamt etwa {all})."],
  "labels.found.filtered": ["With this filter: {n} likely {n:match|matches} (about {all} in all).", "Mit diesem Filter: {n} {n:wahrscheinlicher|wahrscheinliche} Treffer (insgesamt etwa {all})."],
  "labels.checked": ["Checked against your {n} {n:mark|marks}: {found} of {yes} found, {wrong} wrong.", "Geprüft an Ihren {n} {n:Markierung|Markierungen}: {found} von {yes} gefunden, {wrong} falsch."],
  "labels.checked.filtered": ["Checked against your {n} {n:mark|marks} there: {found} of {yes} found, {wrong} wrong.", "Geprüft an Ihren {n} {n:Markierung|Markierungen} darin: {found} von {yes} gefunden, {wrong} falsch."],
  "labels.few": ["{n} {n:mark|marks}: too few examples to tell how good they are.", "{n} {n:Markierung|Markierungen}: zu wenige, um zu sagen, wie gut sie sind."],
  "labels.few.filtered": ["{n} {n:mark|marks} there: too few examples to tell how good they are.", "{n} {n:Markierung|Markierungen} darin: zu wenige, um zu sagen, wie gut sie sind."],
  "labels.unchecked": ["None of your marks is there to check them against.", "Keine Ihrer Markierungen ist dabei, um sie zu prüfen."],
  "labels.start": ["Mark a few pictures with ✓ and ✗: two of each separate likely matches from the rest.", "Markieren Sie einige Bilder mit ✓ und ✗: Je zwei trennen wahrscheinliche Treffer vom Rest."],
  "labels.stop": ["Your marks suggest that 95 % are found: you can stop.", "Nach Ihren Markierungen sind 95 % gefunden: Sie können aufhören."],
  "labels.stop.filtered": ["Your marks suggest that 95 % of the filtered matches are found: you can stop.", "Nach Ihren Markierungen sind 95 % der gefilterten Treffer gefunden: Sie können aufhören."],
  "labels.choose": ["Add or choose a label first.", "Zuerst ein Label anlegen oder auswählen."],
  "labels.marked": ["✓ for {label}: {name}", "✓ für {label}: {name}"],
  "labels.damaged": ["{n} {n:change to your labels|changes to your labels} could not be read and {n:is|are} missing.", "{n} {n:Änderung|Änderungen} an Ihren Labels {n:konnte|konnten} nicht gelesen werden und {n:fehlt|fehlen}."],
  "labels.saved": ["Labels are saved as you mark. Filter by them:", "Labels werden beim Markieren gespeichert. Filtern Sie damit:"],
  "labels.keys": ["Arrows move, space yes, x no, 1–9 yes for that label, u undo, r redo, Enter open, / search.", "Pfeile bewegen, Leertaste ja, x nein, 1–9 ja für dieses Label, u rückgängig, r wiederholen, Enter öffnen, / suchen."],
  "undo": ["Undo", "Rückgängig"],
  "undo.none": ["Nothing to undo.", "Nichts rückgängig zu machen."],
  "undo.what": ["Undo: {what}", "Rückgängig: {what}"],
  "undo.done": ["Undone: {what}.", "Rückgängig gemacht: {what}."],
  "undo.removed": ["Removed. Undo brings it back.", "Entfernt. „Rückgängig“ holt es zurück."],
  "redo": ["Redo", "Wiederholen"],
  "redo.none": ["Nothing to redo.", "Nichts zu wiederholen."],
  "redo.what": ["Redo: {what}", "Wiederholen: {what}"],
  "redo.done": ["Done again: {what}.", "Wiederholt: {what}."],
  "change.class": ["the new label {name}", "neues Label {name}"],
  "change.drop": ["the removal of {name}", "Entfernen von {name}"],
  "change.mark": ["{mark} for {name}", "{mark} für {name}"],
  "change.marks": ["{mark} for {name} on {n} pictures", "{mark} für {name} bei {n} Bildern"],
  "change.none": ["no mark", "keine Markierung"],
  "change.unmark": ["a mark taken away for {name}", "entfernte Markierung für {name}"],
  "classifier.name": ["Classifier name", "Name des Klassifikators"],
  "classifier.save": ["Save as classifier", "Als Klassifikator speichern"],
  "classifier.saved": ["Saved {folder}: {names}; {method}", "{folder} gespeichert: {names}; {method}"],
  "classifier.replaced": ["Saved {folder}, replacing an earlier one: {names}; {method}", "{folder} gespeichert, ein früherer wurde ersetzt: {names}; {method}"],
  "classifier.right": [", {share} of held-out examples right", ", {share} der zurückgehaltenen Beispiele richtig"],
  "classifier.all": ["; from all marks, not only the filtered ones", "; aus allen Markierungen, nicht nur den gefilterten"],
  "classifier.use": ["To label other pictures with it:", "Um andere Bilder damit zu labeln:"],

  // by label
  "sorted.classes": ["Pictures by label", "Bilder nach Label"],
  "sorted.doubtful": ["Least certain first", "Unsicherste zuerst"],
  "sorted.none": ["No label fits", "Kein Label passt"],
  "sorted.by": ["Sorted by a classifier learned from your marks ({method}).", "Sortiert von einem Klassifikator aus Ihren Markierungen ({method})."],
  "sorted.by.all": ["Sorted by a classifier learned from all your marks ({method}).", "Sortiert von einem Klassifikator aus all Ihren Markierungen ({method})."],
  "sorted.few": ["{n} held-out {n:mark|marks}: too few examples to tell how often it is right.", "{n} zurückgehaltene {n:Markierung|Markierungen}: zu wenige, um zu sagen, wie oft er recht hat."],
  "sorted.right": ["{share} of {n} held-out marks right, calibration error {error}. In brackets: other labels that are possible (the right one is among them 9 times in 10).", "{share} von {n} zurückgehaltenen Markierungen richtig, Kalibrierungsfehler {error}. In Klammern: andere mögliche Labels (das richtige ist 9 von 10 Mal dabei)."],
  "sorted.rejected": ["“No label fits” holds pictures unlike every example; about {share} of pictures that have a label end up there by mistake.", "„Kein Label passt“ enthält Bilder, die keinem Beispiel ähneln; etwa {share} der Bilder mit Label geraten irrtümlich dorthin."],

  // map and duplicates
  "map": ["Map of the pictures: arrows move it, + and − zoom, Enter opens the picture nearest to the middle", "Karte der Bilder: Pfeile verschieben sie, + und − zoomen, Enter öffnet das Bild, das der Mitte am nächsten ist"],
  "map.drawing": ["Drawing the map …", "Karte wird gezeichnet …"],
  "map.status": ["Map of {n} {n:picture|pictures} by {method}; wheel, +/− or two fingers zoom, drag or arrows move, a click or Enter opens.", "Karte von {n} {n:Bild|Bildern} ({method}); Mausrad, +/− oder zwei Finger zoomen, Ziehen oder Pfeile verschieben, Klick oder Enter öffnet."],
  "map.status.part": ["Map of {n} of {of} pictures by {method}; wheel, +/− or two fingers zoom, drag or arrows move, a click or Enter opens.", "Karte von {n} der {of} Bilder ({method}); Mausrad, +/− oder zwei Finger zoomen, Ziehen oder Pfeile verschieben, Klick oder Enter öffnet."],
  "duplicates.looking": ["Looking for duplicates …", "Duplikate werden gesucht …"],
  "duplicates.none": ["No duplicates found.", "Keine Duplikate gefunden."],

  // browsing
  "browse": ["Folders, dates and filters", "Ordner, Daten und Filter"],
  "facet.folder": ["Folders", "Ordner"],
  "facet.month": ["Dates", "Zeit"],
  "facet.camera": ["Cameras", "Kameras"],
  "facet.label": ["Labels", "Labels"],
  "facet.source": ["Sources", "Quellen"],
  "facet.all": ["Show all {n}", "Alle {n} zeigen"],
  "facet.fewer": ["Show fewer", "Weniger zeigen"],
  "sort": ["Sort by", "Sortieren nach"],
  "sort.score": ["best match", "bestem Treffer"],
  "sort.newest": ["newest first", "neueste zuerst"],
  "sort.oldest": ["oldest first", "älteste zuerst"],
  "sort.name": ["file name", "Dateiname"],
  "scores": ["Scores", "Werte"],
  "size": ["Size of the pictures", "Größe der Bilder"],
  "timeline": ["Timeline", "Zeitleiste"],
  "timeline.undated": ["No date", "Ohne Datum"],
  "status.arranged": ["The {n} best matches", "Die {n} besten Treffer"],
  "scope.some": ["{n} of {of} pictures. Lists, counts and exports cover only these.", "{n} von {of} Bildern. Listen, Zahlen und Exporte umfassen nur diese."],

  "duplicates.more": ["and {n} more", "und {n} weitere"],
  "duplicates.comparing": ["Comparing pixels: {done} of {total} pictures", "Pixel werden verglichen: {done} von {total} Bildern"],
  "duplicates.stop": ["Stop", "Abbrechen"],
  "duplicates.stopped": ["Stopped before everything was compared.", "Abgebrochen, bevor alles verglichen war."],
  "duplicates.again": ["Look again", "Erneut suchen"],
  "duplicates.changed": ["The library has changed since.", "Die Sammlung hat sich seitdem geändert."],
  "duplicates.kinds": ["Kinds of duplicates", "Arten von Duplikaten"],
  "duplicates.group": ["Group {n} of {of}", "Gruppe {n} von {of}"],
  "duplicates.show": ["Show more groups", "Weitere Gruppen zeigen"],
  "duplicates.keep": ["Keep", "Behalten"],
  "duplicates.remove.one": ["Goes", "Kommt weg"],
  "duplicates.chosen": ["{n} {n:picture|pictures} ({size}) will go", "{n} {n:Bild|Bilder} ({size}) {n:kommt|kommen} weg"],
  "duplicates.chosen.files": ["{n} {n:file|files} ({size}) will go", "{n} {n:Datei|Dateien} ({size}) {n:kommt|kommen} weg"],
  "duplicates.chosen.none": ["Nothing is chosen to go.", "Nichts zum Entfernen ausgewählt."],
  "duplicates.remove": ["Remove from library", "Aus der Sammlung entfernen"],
  "duplicates.remove.ask": ["Remove {n} {n:picture|pictures} from the library? The files stay where they are, and you can undo this.", "{n} {n:Bild|Bilder} aus der Sammlung entfernen? Die Dateien bleiben, wo sie sind, und das lässt sich rückgängig machen."],
  "duplicates.move": ["Move files to a folder …", "Dateien in einen Ordner verschieben …"],
  "duplicates.move.ask": ["Move {n} {n:file|files} to a folder? Nothing is overwritten, and you can undo this.", "{n} {n:Datei|Dateien} in einen Ordner verschieben? Nichts wird überschrieben, und das lässt sich rückgängig machen."],
  "duplicates.move.folder": ["Folder, such as /home/me/duplicates", "Ordner, etwa /home/ich/duplikate"],
  "duplicates.move.do": ["Move files", "Dateien verschieben"],
  "duplicates.kept": ["Kept: {name}", "Bleibt: {name}"],
  "duplicates.kept.none": ["No picture of this group is kept.", "Kein Bild dieser Gruppe bleibt."],
  "duplicates.removed": ["Removed {n} {n:picture|pictures} from the library.", "{n} {n:Bild|Bilder} aus der Sammlung entfernt."],
  "duplicates.moved": ["Moved {n} {n:file|files}.", "{n} {n:Datei|Dateien} verschoben."],
  "duplicates.missing": ["{n} {n:picture has|pictures have} no file here.", "{n} {n:Bild hat|Bilder haben} hier keine Datei."],
  "duplicates.undo": ["Undo", "Rückgängig"],
  "duplicates.undone": ["{n} {n:picture is|pictures are} back.", "{n} {n:Bild ist|Bilder sind} zurück."],
  "kind.identical": ["Identical", "Identisch"],
  "kind.identical.title": ["The same pixels in several files.", "Dieselben Pixel in mehreren Dateien."],
  "kind.near-identical": ["Near-identical", "Fast identisch"],
  "kind.near-identical.title": ["The same picture in another size, quality or crop, compared by pixels. The best one is kept.", "Dasselbe Bild in anderer Größe, Qualität oder anderem Ausschnitt, nach Pixeln verglichen. Das beste bleibt."],
  "kind.similar": ["Similar", "Ähnlich"],
  "kind.similar.title": ["Pictures that look alike to the model. They may well be different photographs.", "Bilder, die für das Modell ähnlich aussehen. Es können durchaus verschiedene Fotos sein."],

  // the server
  "server.gone": ["The server does not answer. Start it again; your marks are saved.", "Der Server antwortet nicht. Starten Sie ihn neu; Ihre Markierungen sind gespeichert."],
  "server.status": ["The server said {status}.", "Der Server meldet {status}."],
};

const kept = () => { try { return localStorage.getItem("recollect.language"); } catch { return null; } }; // storage may be blocked

export const languages = Object.entries(LANGUAGES);
export const language = [kept(), ...navigator.languages].map((each) => each?.slice(0, 2)).find((each) => each in LANGUAGES) ?? "en";
const column = Object.keys(LANGUAGES).indexOf(language);

export const number = (value) => value.toLocaleString(language);
export const bytes = (value) => (value < 1e6 ? `${number(Math.ceil(value / 1e3))} kB` : `${number(Math.round(value / 1e5) / 10)} MB`);
export const percent = (share) => (share === null || share === undefined ? "–" : `${Math.round(100 * share)} %`);

// the text of a key, with values filled in
export function t(key, values = {}) {
  return STRINGS[key][column].replace(/\{(\w+)(?::([^|}]*)\|([^}]*))?\}/g, (_, name, one, many) => {
    const value = values[name];
    if (one !== undefined) return value === 1 ? one : many;
    return typeof value === "number" ? number(value) : value;
  });
}

// fills the texts that the HTML asks for: data-t names the text of an element, data-t-title and so on its attributes
export function translate(root) {
  document.documentElement.lang = language;
  for (const place of root.querySelectorAll("[data-t]")) place.textContent = t(place.dataset.t);
  for (const name of ["title", "placeholder", "aria-label"]) for (const place of root.querySelectorAll(`[data-t-${name}]`)) place.setAttribute(name, t(place.getAttribute(`data-t-${name}`)));
}
