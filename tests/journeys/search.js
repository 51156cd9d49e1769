// The search of the built site without a browser: node search.js SITE QUERY ... prints the addresses that each query finds
// as JSON. The worker of the theme, the index and the scripts of the site are those that a browser loads.
const fs = require("fs"), path = require("path"), vm = require("vm")
const [site, ...queries] = process.argv.slice(2)
const read = (...names) => fs.readFileSync(path.join(site, ...names), "utf8")

class Worker {
  constructor() {
    const [file] = fs.readdirSync(path.join(site, "assets/javascripts/workers")).filter(name => name.endsWith(".js"))
    this.inside = { console, addEventListener: (_, listener) => (this.listener = listener), postMessage: message => this.answer(message) }
    this.inside.self = this.inside
    vm.runInNewContext(read("assets/javascripts/workers", file), this.inside)
  }
  postMessage(data) { this.listener({ data }) }
  ask(message) { return new Promise(resolve => { this.answer = resolve; this.postMessage(message) }) }
}

const window = { Worker }
vm.runInNewContext(read("site/search.js"), { window })
const [SETUP, QUERY] = [0, 2]
const run = async () => {
  const worker = new Worker(), found = {}
  await worker.ask({ type: SETUP, data: { ...JSON.parse(read("search/search_index.json")), options: { suggest: false } } })
  for (const query of queries) {
    const { data } = await worker.ask({ type: QUERY, data: query })
    found[query] = data.items.map(([section]) => section.location)
  }
  console.log(JSON.stringify(found))
}
run()
