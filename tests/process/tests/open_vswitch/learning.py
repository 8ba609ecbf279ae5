"""A learning switch for OpenFlow 1.3 by os-ken's library, for a test: rules for what has been learned, floods for the rest."""
from os_ken.base import app_manager
from os_ken.controller import ofp_event
from os_ken.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.lib.packet import ethernet, packet
from os_ken.ofproto import ofproto_v1_3


def put(path, priority, match, actions):
    apply = path.ofproto_parser.OFPInstructionActions(path.ofproto.OFPIT_APPLY_ACTIONS, actions)
    path.send_msg(path.ofproto_parser.OFPFlowMod(path, priority=priority, match=match, instructions=[apply]))


class Learning(app_manager.OSKenApp):
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]
    places = {}

    @set_ev_cls(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def begins(self, event):
        path = event.msg.datapath
        ask = path.ofproto_parser.OFPActionOutput(path.ofproto.OFPP_CONTROLLER, path.ofproto.OFPCML_NO_BUFFER)
        put(path, 0, path.ofproto_parser.OFPMatch(), [ask])

    @set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)
    def hears(self, event):
        message = event.msg
        path, port = message.datapath, message.match['in_port']
        frame = packet.Packet(message.data).get_protocol(ethernet.ethernet)
        self.places[frame.src] = port
        to = self.places.get(frame.dst, path.ofproto.OFPP_FLOOD)
        actions = [path.ofproto_parser.OFPActionOutput(to)]
        if to != path.ofproto.OFPP_FLOOD:
            match = path.ofproto_parser.OFPMatch(in_port=port, eth_src=frame.src, eth_dst=frame.dst)
            put(path, 1, match, actions)
        path.send_msg(path.ofproto_parser.OFPPacketOut(
            datapath=path, buffer_id=path.ofproto.OFP_NO_BUFFER, in_port=port, actions=actions, data=message.data))
