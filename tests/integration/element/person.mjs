// A person with an Element-like client: matrix-js-sdk with its Rust crypto, driven by JSON lines.
//
// Each line on stdin is {"id": n, "do": name, ...arguments}; the answer on stdout is {"id": n, "ok": value} or
// {"id": n, "error": text}. What happens by itself is {"seen": kind, ...}.
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const modules = process.env.SQUIDBOT_NODE_MODULES;
const load = (path) => import(pathToFileURL(`${modules}/matrix-js-sdk/lib/${path}`).href);
const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");
for (const name of ["log", "debug", "info", "warn", "error", "trace"]) console[name] = () => {};

const sdk = await load("index.js");
const { logger } = await load("logger.js");
logger.setLevel?.("silent", false);
const api = await load("crypto-api/index.js");

let client;
let emoji = {};

async function describe(event) {
    await client.decryptEventIfNeeded(event).catch(() => {});
    const crypto = client.getCrypto();
    const covered = event.isEncrypted() && !event.isDecryptionFailure();
    const info = covered ? await crypto.getEncryptionInfoForEvent(event) : null;
    return {
        seen: "event",
        room: event.getRoomId(),
        id: event.getId(),
        sender: event.getSender(),
        type: event.getType(),
        wire: event.getWireType(),
        content: event.isDecryptionFailure() ? {} : event.getContent(),
        unreadable: event.isDecryptionFailure() ? String(event.decryptionFailureReason) : null,
        shield: info ? info.shieldColour : null,
        reason: info ? info.shieldReason : null,
    };
}

async function finish(request) {
    const verifier = request.verifier ?? (await request.startVerification("m.sas.v1"));
    verifier.on("show_sas", (sas) => {
        emoji[request.otherUserId] = sas.sas.emoji.map(([sign, name]) => `${sign} ${name}`);
        sas.confirm();
    });
    await verifier.verify();
    return emoji[request.otherUserId];
}

function until(condition, emitter, name) {
    return new Promise((resolve) => {
        const look = () => condition() && (emitter.off(name, look), resolve());
        emitter.on(name, look);
        look();
    });
}

const actions = {
    async start({ url, user, token, device }) {
        client = sdk.createClient({ baseUrl: url, userId: user, accessToken: token, deviceId: device });
        await client.initRustCrypto({ useIndexedDB: false });
        client.on("Room.timeline", async (event, _room, toStart) => {
            if (!toStart && event.getSender() !== user) say(await describe(event));
        });
        client.on("Event.decrypted", async (event) => {
            if (event.getSender() !== user) say(await describe(event));
        });
        await client.startClient({ initialSyncLimit: 20 });
        await until(() => client.isInitialSyncComplete(), client, "sync");
        return true;
    },
    async bootstrap({ password }) {
        await client.getCrypto().bootstrapCrossSigning({
            setupNewCrossSigning: true,
            authUploadDeviceSigningKeys: (request) =>
                request(null).catch((error) =>
                    request({
                        type: "m.login.password",
                        identifier: { type: "m.id.user", user: client.getUserId() },
                        password,
                        session: error.data.session,
                    }),
                ),
        });
        return true;
    },
    async create({ invite, encrypted, version }) {
        const initial_state = encrypted
            ? [{ type: "m.room.encryption", state_key: "", content: { algorithm: "m.megolm.v1.aes-sha2" } }]
            : [];
        const made = await client.createRoom({
            invite, is_direct: true, preset: "trusted_private_chat", initial_state, room_version: version,
        });
        return made.room_id;
    },
    async joined({ room, user }) {
        const is = () => client.getRoom(room)?.getMember(user)?.membership === "join";
        await until(is, client, "RoomMember.membership");
        return true;
    },
    async send({ room, text }) {
        return (await client.sendMessage(room, { msgtype: "m.text", body: text })).event_id;
    },
    exclude({ on }) {
        const mode = on ? new api.OnlySignedDevicesIsolationMode() : new api.AllDevicesIsolationMode(false);
        client.getCrypto().setDeviceIsolationMode(mode);
        return true;
    },
    async discard({ room }) {
        await client.getCrypto().forceDiscardSession(room);
        return true;
    },
    async verify({ user, device, room }) {
        const crypto = client.getCrypto();
        await crypto.getUserDeviceInfo([user], true);
        const request = room
            ? await crypto.requestVerificationDM(user, room)
            : await crypto.requestDeviceVerification(user, device);
        await until(() => request.phase >= api.VerificationPhase.Ready, request, "change");
        const seen = await finish(request);
        await until(() => request.phase >= api.VerificationPhase.Done, request, "change");
        return { phase: request.phase, done: request.phase === api.VerificationPhase.Done, emoji: seen };
    },
    async trust({ user }) {
        return (await client.getCrypto().getUserVerificationStatus(user)).isCrossSigningVerified();
    },
    stop() {
        client?.stopClient();
        setTimeout(() => process.exit(0), 50);
        return true;
    },
};

createInterface({ input: process.stdin }).on("line", async (line) => {
    const { id, do: name, ...given } = JSON.parse(line);
    try {
        say({ id, ok: await actions[name](given) });
    } catch (error) {
        say({ id, error: `${error?.name}: ${error?.message}` });
    }
});
say({ seen: "ready" });
